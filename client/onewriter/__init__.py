"""onewriter for applications: ``import onewriter``.

A producer that is the only one of its topic, and knows when it is not any more::

    async with onewriter.Client("pulsar://127.0.0.1:6650") as client:
        async with onewriter.Leadership(client, "orders") as candidate:
            async for term in candidate.terms():  # each time it is our turn
                while not term.is_over:
                    await term.send(b"only I can write this")

Applications in other languages talk to the sidecar (``onewriter sidecar``); for tests there is
``onewriter.testing``, a real broker in a few lines. docs/client.md explains all of it.
"""

from onewriter._client import Client
from onewriter._config import Limits, Tls, TokenSource, token_file
from onewriter._errors import (
    Closed,
    ConfigurationError,
    Fenced,
    NotSent,
    OnewriterError,
    OutcomeUnknown,
    Refused,
    ServerError,
    Unavailable,
)
from onewriter._leadership import Leadership, Phase, Standing, Term, requeue_delay_seconds
from onewriter._outbox import MessageId
from onewriter._producer import Producer
from onewriter._tenure import AccessMode, ProducerOptions, ProducerState

__all__ = [
    "AccessMode",
    "Client",
    "Closed",
    "ConfigurationError",
    "Fenced",
    "Leadership",
    "Limits",
    "MessageId",
    "NotSent",
    "OnewriterError",
    "OutcomeUnknown",
    "Phase",
    "Producer",
    "ProducerOptions",
    "ProducerState",
    "Refused",
    "ServerError",
    "Standing",
    "Term",
    "Tls",
    "TokenSource",
    "Unavailable",
    "requeue_delay_seconds",
    "token_file",
]
