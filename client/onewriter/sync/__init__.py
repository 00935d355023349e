"""The SDK for programs without an event loop: the same names, and calls that block.

::

    import onewriter.sync

    with onewriter.sync.Client("pulsar://127.0.0.1:6650") as client:
        with client.lead("orders", priority=10) as leadership:
            while not leadership.lost.is_set():
                leadership.send(b"only I can write this")

Each client has one thread, in which its event loop runs; it keeps connections alive and hears of
losses while the program computes. Every method may be called from any thread. Errors, options and
values are those of ``onewriter``. Callbacks run in that thread: they must not block, nor call
anything that does. docs/sync.md has the rest.
"""

from onewriter.sync._candidacy import Candidacy, Standing
from onewriter.sync._client import Client
from onewriter.sync._guard import Guarded, Transaction
from onewriter.sync._leadership import Lead, Leadership, Loss
from onewriter.sync._own import Own, Ownership, Ownerships
from onewriter.sync._producer import Producer
from onewriter.sync._source import Consumer, Reader
from onewriter.sync._state import SharedMap, SharedState, Watch

__all__ = [
    "Candidacy",
    "Client",
    "Consumer",
    "Guarded",
    "Lead",
    "Leadership",
    "Loss",
    "Own",
    "Ownership",
    "Ownerships",
    "Producer",
    "Reader",
    "SharedMap",
    "SharedState",
    "Standing",
    "Transaction",
    "Watch",
]
