"""onewriter for applications: ``import onewriter``.

A producer that is the only one of its topic, and knows when it is not any more::

    async with onewriter.Client("pulsar://127.0.0.1:6650") as client:
        async with client.lead("orders", priority=10) as leadership:  # waits for its turn
            while not leadership.lost.is_set():
                await leadership.send(b"only I can write this")

Applications in other languages talk to the sidecar (``onewriter sidecar``); for tests there is
``onewriter.testing``, a real broker in a few lines. docs/client.md explains all of it.
"""

from onewriter._candidacy import Candidacy, Phase, Standing
from onewriter._checks import Check
from onewriter._client import Client
from onewriter._config import Limits, Tls, TokenSource, requeue_delay_seconds, token_file
from onewriter._consumer import Consumer, ConsumerOptions, SubscriptionType
from onewriter._errors import (
    Closed,
    ConfigurationError,
    EndOfTopic,
    Fenced,
    NoMessage,
    NotSent,
    OnewriterError,
    OutcomeUnknown,
    Refused,
    ServerError,
    Unavailable,
    Unreadable,
)
from onewriter._guard import Guarded, GuardedBy
from onewriter._ids import EARLIEST, LATEST, MessageId
from onewriter._lead import Lead
from onewriter._leader import LeaderInfo
from onewriter._leadership import Leadership, Loss
from onewriter._message import Message
from onewriter._own import Own, Ownership, Ownerships
from onewriter._packing import Batching, Compression
from onewriter._producer import Producer
from onewriter._reader import Reader, ReaderOptions
from onewriter._tenure import AccessMode, ProducerOptions, ProducerState
from onewriter._transaction import Transaction
from onewriter.state import (
    Change,
    Checkpoints,
    MapView,
    MemoryLog,
    Serializer,
    SharedMap,
    SharedState,
    SharedStateBuilder,
    StateError,
    StateGap,
    StateLimits,
    UnreadableEntry,
    VersionConflict,
    Versioned,
    WatchOverflow,
    WrongType,
)

__all__ = [
    "EARLIEST",
    "LATEST",
    "AccessMode",
    "Batching",
    "Candidacy",
    "Change",
    "Check",
    "Checkpoints",
    "Client",
    "Closed",
    "Compression",
    "ConfigurationError",
    "Consumer",
    "ConsumerOptions",
    "EndOfTopic",
    "Fenced",
    "Guarded",
    "GuardedBy",
    "Lead",
    "LeaderInfo",
    "Leadership",
    "Limits",
    "Loss",
    "MapView",
    "MemoryLog",
    "Message",
    "MessageId",
    "NoMessage",
    "NotSent",
    "OnewriterError",
    "OutcomeUnknown",
    "Own",
    "Ownership",
    "Ownerships",
    "Phase",
    "Producer",
    "ProducerOptions",
    "ProducerState",
    "Reader",
    "ReaderOptions",
    "Refused",
    "Serializer",
    "ServerError",
    "SharedMap",
    "SharedState",
    "SharedStateBuilder",
    "Standing",
    "StateError",
    "StateGap",
    "StateLimits",
    "SubscriptionType",
    "Tls",
    "TokenSource",
    "Transaction",
    "Unavailable",
    "Unreadable",
    "UnreadableEntry",
    "VersionConflict",
    "Versioned",
    "WatchOverflow",
    "WrongType",
    "requeue_delay_seconds",
    "token_file",
]
