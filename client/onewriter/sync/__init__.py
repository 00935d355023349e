"""The SDK for programs without an event loop: the same names, and calls that block.

::

    import onewriter.sync

    with onewriter.sync.Client("pulsar://127.0.0.1:6650") as client:
        with client.lead("orders", priority=10) as leadership:
            while not leadership.lost.is_set():
                leadership.send(b"only I can write this")

Each client has one thread with its event loop, which keeps connections alive and detects losses while the program
computes. Any thread may call every method. Errors, options and values are those of ``onewriter``. Callbacks run in
the client's thread: they must neither block nor call a method that blocks. docs/sync.md describes the details.
"""

from onewriter.sync._candidacy import Candidacy, Standing
from onewriter.sync._client import Client
from onewriter.sync._leadership import Lead, Leadership, Loss
from onewriter.sync._own import Own, Ownership, Ownerships
from onewriter.sync._producer import Guarded, Producer, Transaction
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
