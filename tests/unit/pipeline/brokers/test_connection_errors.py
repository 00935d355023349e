"""Errors without an answer of a broker are plain sentences. The tests use real sockets."""

from __future__ import annotations

import errno
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.unit.pipeline.scripted_broker import Answer, scripted_broker
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError, ReadTimeoutError
from urllib3.exceptions import ProtocolError as BrokenProtocol

from onewriter_pipeline.brokers import connection_errors
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access, AccessLimits
from onewriter_pipeline.errors import Away, Damaged, Invalid, NotAllowed, NotFound
from onewriter_testing.ports import free_ports

URL = "http://broker:8080"
HTTP_WORDS = ("HTTPConnection", "urllib3", "Errno", "object at", "Max retries", "Caused by")
"""Words of libraries that users should not see."""


QUICK = AccessLimits(
    connect_seconds=0.2, read_seconds=0.2, pause_seconds=0.001, pause_seconds_max=0.01
)
PATIENT = AccessLimits(
    connect_seconds=60.0, read_seconds=60.0, pause_seconds=0.001, pause_seconds_max=0.01
)
"""For a server that answers, which may be slow on a busy machine."""


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port that serves each connection with a function, within the block."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                serve(peer)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def said(url: str, limits: AccessLimits = PATIENT) -> str:
    """The message that a user reads for this address."""
    access = Access(url, patience_seconds=0.05, limits=limits)
    with Broker(access) as broker, pytest.raises((Away, Invalid)) as raised:
        broker.segments("orders")
    text = str(raised.value)
    assert not [word for word in HTTP_WORDS if word in text]
    return text


def test_refused_connection_is_explained() -> None:
    port = free_ports(1)
    expected = f"127.0.0.1:{port} refused the connection: nothing listens there"
    assert said(f"http://127.0.0.1:{port}") == f"no broker served this within 0.05 s: {expected}"


def test_unknown_host_is_explained() -> None:
    assert said("http://nobody.invalid:8080").endswith("unknown host: nobody.invalid")


def test_silent_broker_is_explained() -> None:
    is_over = threading.Event()

    def reads_and_waits(peer: socket.socket) -> None:
        peer.recv(1)
        is_over.wait()

    with listening(reads_and_waits) as port:
        try:
            text = said(f"http://127.0.0.1:{port}", QUICK)
        finally:
            is_over.set()
    assert text.endswith(f"127.0.0.1:{port} did not answer in time")


def test_closed_connection_is_explained() -> None:
    with listening(lambda peer: None) as port:
        assert said(f"http://127.0.0.1:{port}").endswith(f"127.0.0.1:{port} closed the connection")


def test_port_without_tls_is_explained() -> None:
    with scripted_broker(lambda _: Answer()) as served:
        text = said(served.url.replace("http://", "https://"))
    assert "does not use TLS: write its address with http://" in text


@pytest.mark.parametrize("option", ["ca_file", "certificate_file", "key_file"])
def test_missing_tls_file_is_explained(tmp_path: Path, option: str) -> None:
    file = str(tmp_path / "none.pem")
    text = f"the TLS file {file} cannot be read: No such file or directory"
    with pytest.raises(Invalid, match=text):
        Broker(Access("https://127.0.0.1:1", **{option: file}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "error", "text"),
    [
        (401, NotAllowed, r"^the brokers refuse the token \(401\): no token$"),
        (403, NotAllowed, r"^the token does not allow this \(403\): no token$"),
        (404, NotFound, "^no token$"),
    ],
)
def test_a_refusal_has_the_message_of_the_broker(
    status: int, error: type[Exception], text: str
) -> None:
    with (
        scripted_broker(lambda _: Answer(status, {"reason": "no token"})) as served,
        Broker(Access(served.url, limits=QUICK)) as broker,
        pytest.raises(error, match=text),
    ):
        broker.segments("orders")


def test_answer_of_another_server_is_explained() -> None:
    with (
        scripted_broker(lambda _: Answer(404, "not found")) as served,
        Broker(Access(served.url, limits=QUICK)) as broker,
        pytest.raises(Damaged, match="is not a onewriter broker: it answers HTTP 404"),
    ):
        broker.segments("orders")


def new_connection(cause: OSError) -> NewConnectionError:
    error = NewConnectionError(None, "failed")  # type: ignore[arg-type]
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (new_connection(ConnectionRefusedError()), "refused the connection: nothing listens there"),
        (new_connection(OSError(errno.EHOSTUNREACH, "x")), "cannot be reached from here"),
        (new_connection(OSError(errno.EMFILE, "too many")), "failed: too many"),
        (ConnectTimeoutError(), "did not accept the connection in time"),
        (ReadTimeoutError(None, "", "x"), "did not answer in time"),  # type: ignore[arg-type]
        (BrokenProtocol("Connection broken", ConnectionResetError()), "closed the connection"),
        (BrokenProtocol("Connection broken"), "broke off"),
        (ssl.SSLError(1, "odd"), "TLS with broker:8080 failed"),
        (RuntimeError("x"), r"failed \(RuntimeError\)"),
    ],
)
def test_each_kind_of_failure_has_a_sentence(error: Exception, expected: str) -> None:
    found = connection_errors.sentence(error, URL)
    assert "broker:8080" in found
    with pytest.raises(AssertionError, match=expected):
        raise AssertionError(found)


def test_permanent_failures_are_distinguished() -> None:
    assert connection_errors.lasting(ConnectionRefusedError(), URL) is None
    assert connection_errors.lasting(ssl.SSLError(1, "odd"), URL) is None
    untrusted = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] failed")
    text = connection_errors.lasting(untrusted, URL)
    assert text is not None
    assert text.startswith("the certificate of broker:8080 is not trusted: ")
