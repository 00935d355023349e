"""Brokers in this process that require tokens, and clients with and without the right ones."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import jwt
from tests.integration.http_calls import Http
from tests.integration.raw import RawClient

from onewriter_broker.app import BrokerLimits
from onewriter_testing.in_process import InProcessBroker, in_process_broker

ADMINISTRATOR = "boss"
SECRET = secrets.token_hex(32)

GuardedBrokers = Callable[..., InProcessBroker]


def token_of(subject: str, **claims: object) -> str:
    """A token that guarded brokers accept."""
    return jwt.encode({"sub": subject, **claims}, SECRET, algorithm="HS256")


def http_as(broker: InProcessBroker, subject: str = "") -> Http:
    """A client of the broker's HTTP port with this subject; without a subject it has no token."""
    return Http(broker.http_url, token_of(subject) if subject else "")


def wire_as(broker: InProcessBroker, raw: Callable[..., RawClient], subject: str) -> RawClient:
    """A connection to the broker with this subject."""
    return raw(address_of(broker), token=token_of(subject))


def address_of(broker: InProcessBroker) -> tuple[str, int]:
    """Host and port of its binary protocol."""
    host, _, port = broker.service_url.removeprefix("pulsar://").partition(":")
    return host, int(port)


@contextlib.contextmanager
def guarded_brokers(folder: Path) -> Iterator[GuardedBrokers]:
    """Makes brokers that ask for a token: ``make(manifests=..., limits=..., **settings)``; stopped at the end."""
    key = folder / "token-secret"
    key.write_text(SECRET)
    required: dict[str, object] = {
        "authentication_required": True,
        "token_secret_file": key,
        "admin_subjects": ADMINISTRATOR,
    }
    with contextlib.ExitStack() as stack:

        def make(
            *, manifests: str = "", limits: BrokerLimits = BrokerLimits(), **settings: object
        ) -> InProcessBroker:
            chosen = required | settings
            return stack.enter_context(
                in_process_broker(manifests=manifests, settings=chosen, limits=limits)
            )

        yield make
