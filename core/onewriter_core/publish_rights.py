"""The right to publish under an epoch: the holder's registration, and capabilities made from it.

An epoch is public: topic status, messages and audit records contain it. So an epoch proves nothing. A client that
publishes under an epoch over HTTP presents one of two secrets:

* The **registration**, which the broker returns to the holder together with its grant. It is a MAC of topic, epoch
  and holder, under a key that all brokers of an installation read from the store. No broker stores the registration:
  it survives a resume and a move of the topic to another broker, and is invalid after the end of the epoch. It is
  valid only for the identity that was granted the epoch.
* A **capability**, which the holder makes from its registration and passes on. It is limited to one app, expires,
  and ends with the epoch at the latest. Its bearer may have any identity.

Both the broker and the SDK use this module. It reads no clock and draws no random number.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final, NamedTuple

from onewriter_core.ids import Identity, TopicName

REGISTRATION_HEADER: Final = "Onewriter-Registration"
"""HTTP header: the holder's registration in hexadecimal digits."""

CAPABILITY_HEADER: Final = "Onewriter-Capability"
"""HTTP header: a capability that the holder passed on, ``<app>.<expires>.<signature>``."""

APP_LENGTH_MAX: Final = 200
"""The maximum length of an app, the name under which batches are published."""

KEY_BYTES: Final = 32
"""Bytes of the installation's key."""

_APP: Final = re.compile(rf"[A-Za-z0-9._:-]{{1,{APP_LENGTH_MAX}}}")
_CAPABILITY: Final = re.compile(rf"({_APP.pattern})\.([0-9]{{1,12}})\.([0-9a-f]{{64}})")


class Capability(NamedTuple):
    """A capability as its bearer presents it. ``expires`` is in Unix seconds."""

    app: str
    expires: int
    signature: str


def is_app(name: str) -> bool:
    """Whether ``name`` may be the app of a publish."""
    return _APP.fullmatch(name) is not None


def registration_of(key: bytes, topic: TopicName, epoch: int, holder: Identity) -> str:
    """The registration of an epoch's holder, under the installation's key.

    All partitions that one epoch leads share it.
    """
    words = (str(topic.base), str(epoch), holder.subject, holder.pod_uid)
    return _signature(key, "registration", *words)


def capability_of(registration: str, app: str, expires: int) -> str:
    """The text that passes the right to publish as ``app`` on, until ``expires`` (Unix seconds).

    Raises ValueError for an app or a time that no capability can have.
    """
    text = f"{app}.{expires}.{_capability_signature(registration, app, expires)}"
    if not is_app(app) or _CAPABILITY.fullmatch(text) is None:
        raise ValueError(f"no capability can be made for app {app[:200]!r} until {expires}")
    return text


def parse_capability(text: str) -> Capability | None:
    """Parse a capability without verifying it; None for any other text."""
    found = _CAPABILITY.fullmatch(text)
    return None if found is None else Capability(found[1], int(found[2]), found[3])


def is_registration(shown: str, expected: str) -> bool:
    """Whether a registration is the expected one, compared in constant time."""
    return _equal(shown, expected)


def is_capability_of(shown: Capability, registration: str) -> bool:
    """Whether a capability was made from this registration, compared in constant time.

    The caller checks app and expiry.
    """
    return _equal(shown.signature, _capability_signature(registration, shown.app, shown.expires))


def _capability_signature(registration: str, app: str, expires: int) -> str:
    return _signature(registration.encode(), "capability", app, str(expires))


def _signature(key: bytes, *words: str) -> str:
    """HMAC-SHA256 of words. Each word is preceded by its length, so that two lists never have the same bytes."""
    mac = hmac.new(key, digestmod=hashlib.sha256)
    for word in words:
        encoded = word.encode("utf-8", "surrogatepass")
        mac.update(len(encoded).to_bytes(4, "little"))
        mac.update(encoded)
    return mac.hexdigest()


def _equal(shown: str, expected: str) -> bool:
    return hmac.compare_digest(shown.encode("utf-8", "surrogatepass"), expected.encode())
