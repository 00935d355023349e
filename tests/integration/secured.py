"""A broker that clients reach only over TLS, with tokens, and with rights from declarations and claims."""

from __future__ import annotations

import contextlib
import itertools
import re
import secrets
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from ssl import create_default_context

import jwt
from tests.cluster.pki import Authority
from tests.integration.forked_brokers import forked_brokers

from onewriter_testing.ports import free_ports
from onewriter_testing.processes import LocalBrokers

WRITER, READER, STRANGER, ADMINISTRATOR = "writer", "reader", "stranger", "boss"

LIFE_SECONDS = 6.0
"""Lifetime of a token in a file that is renewed."""
RENEWAL_SECONDS = 1.0
REFRESHED_SECONDS = 16
"""Duration of work that must outlive every token that it began with."""

_TOPIC = """
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {{name: {name}}}
spec:
  access:
    modes: [Shared, Exclusive, WaitForExclusive, ExclusiveWithFencing]
    consumers: {{subjects: [{reader}]}}
---
apiVersion: onewriter.dev/v1alpha1
kind: ProducerClaim
metadata: {{name: {name}}}
spec:
  topicRef: {{name: {name}}}
  subject: {{tokenSubject: {writer}}}
  allow: [lead, takeover]
"""

_REFUSALS = re.compile(r'^onewriter_refusals_total\{right="(\w+)"\} (\S+)$', re.MULTILINE)


@dataclass
class Secured:
    """The broker, and the credentials that clients present to it."""

    brokers: LocalBrokers
    authority: Authority
    port: int
    https_port: int
    _secret: str
    _folder: Path
    _files: Iterator[int] = field(default_factory=itertools.count)

    @property
    def url(self) -> str:
        return f"pulsar+ssl://127.0.0.1:{self.port}"

    @property
    def authorities(self) -> str:
        return str(self.authority.certificate)

    def token(self, subject: str, seconds: float | None = None) -> str:
        claims: dict[str, object] = {"sub": subject}
        if seconds is not None:
            claims["exp"] = time.time_ns() / 1e9 + seconds
        return jwt.encode(claims, self._secret, algorithm="HS256")

    @contextlib.contextmanager
    def renewed(self, subject: str) -> Iterator[Path]:
        """A file with a short-lived token that is rewritten regularly, as in Kubernetes.

        Each call has a file of its own: several may run at a time for one subject.
        """
        name = f"{subject}-{next(self._files)}.token"
        path, over = self._folder / name, threading.Event()

        def write() -> None:
            unfinished = path.with_suffix(".unfinished")
            unfinished.write_text(self.token(subject, LIFE_SECONDS))
            unfinished.replace(path)

        def run() -> None:
            while not over.wait(RENEWAL_SECONDS):
                write()

        write()
        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield path
        finally:
            over.set()
            thread.join()

    def refusals(self) -> dict[str, int]:
        """Return the number of refused requests by the missing right."""
        request = urllib.request.Request(f"https://127.0.0.1:{self.https_port}/metrics")
        request.add_header("Authorization", f"Bearer {self.token(ADMINISTRATOR)}")
        context = create_default_context(cafile=self.authorities)
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:  # noqa: S310
            text = answer.read().decode()
        return {right: int(float(count)) for right, count in _REFUSALS.findall(text)}

    @contextlib.contextmanager
    def few_refusals(self, attempts: int) -> Iterator[None]:
        """Within the context, the broker refuses requests, but only a few for each attempt of a client.

        There may be fewer than ``attempts`` refusals: a client may answer a second attempt from the refused look-up
        of the first one. Java's client does so if the two follow each other closely. The caller checks each attempt.
        """
        before = sum(self.refusals().values())
        yield
        found = sum(self.refusals().values()) - before
        assert 1 <= found <= attempts * REQUESTS_PER_ATTEMPT, self.refusals()


REQUESTS_PER_ATTEMPT = 3
"""Requests that a client may send for one thing before it reports a refusal: it looks a topic up in two steps."""


@contextlib.contextmanager
def secured_broker(folder: Path, *topics: str) -> Iterator[Secured]:
    """Run the broker of a test module. WRITER writes each topic, and READER reads it."""
    authority = Authority(folder / "pki")
    authority.server("broker", ["127.0.0.1", "localhost"])
    port, https_port = free_ports(1), free_ports(1)
    secret = secrets.token_hex(32)
    (folder / "secret").write_text(secret)
    settings: dict[str, object] = {
        "tls_cert_file": str(authority.directory / "broker.crt"),
        "tls_key_file": str(authority.directory / "broker.key"),
        "tls_port": port,
        "https_port": https_port,
        "authentication_required": True,
        "token_secret_file": str(folder / "secret"),
        "admin_subjects": ADMINISTRATOR,
        "require_declared": True,
        "consumers_default": "namespace",
    }
    manifests = "---".join(
        _TOPIC.format(name=each, reader=READER, writer=WRITER) for each in topics
    )
    with forked_brokers(manifests=manifests, settings=settings) as brokers:
        yield Secured(brokers, authority, port, https_port, secret, folder)
