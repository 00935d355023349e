"""The onewriter SDK for applications: ``import onewriter``.

This program leads a topic: it is the topic's only writer, and it learns at once when it is no longer::

    async with onewriter.Client("pulsar://127.0.0.1:6650") as client:
        async with client.lead("orders", priority=10) as leadership:  # waits until the topic is granted
            while not leadership.lost.is_set():
                await leadership.send(b"only I can write this")

``onewriter.sync`` is the same API without asyncio. Applications in other languages use the sidecar
(``onewriter sidecar``). ``onewriter.testing`` starts a real broker in tests. docs/client.md explains the
SDK.
"""

from onewriter._client import Client
from onewriter._config import Limits, Tls, TokenSource, requeue_delay_seconds, token_file
from onewriter._consume.consumer import Consumer, ConsumerOptions, SubscriptionType
from onewriter._consume.reader import Reader, ReaderOptions
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
from onewriter._lead.announcement import LeaderInfo
from onewriter._lead.candidacy import Candidacy, Phase, Standing
from onewriter._lead.lead import Lead
from onewriter._lead.leadership import Leadership, Loss
from onewriter._lead.transaction import Transaction
from onewriter._message import EARLIEST, LATEST, Message, MessageId
from onewriter._own.own import Own, Ownership, Ownerships
from onewriter._produce.guarded import Guarded, GuardedBy
from onewriter._produce.packer import Batching, Compression
from onewriter._produce.producer import Producer
from onewriter._produce.tenure import AccessMode, ProducerOptions, ProducerState
from onewriter._transport.checks import Check
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
