"""A TCP proxy that cuts connections in mid-stream, like an unreliable network.

It listens on another loopback address with the broker's own port, so that the advertised address can lead
through it: ``advertised_host=PROXY_HOST``.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from typing import Self

PROXY_HOST = "127.0.0.2"

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER that makes close() send RST: undelivered data is lost."""


class CuttingProxy:
    """Forwards to ``target``. It cuts ``cuts`` connections, each after some bytes of its client."""

    def __init__(
        self, target: tuple[str, int], *, cuts: int, bytes_between: int, seed: int = 1
    ) -> None:
        self.cuts_left = cuts
        self._target = target
        self._bytes_between = bytes_between
        self._random = random.Random(seed)
        self._links: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server((PROXY_HOST, target[1]))

    @property
    def url(self) -> str:
        return f"pulsar://{PROXY_HOST}:{self._target[1]}"

    @property
    def address(self) -> tuple[str, int]:
        return PROXY_HOST, self._target[1]

    def __enter__(self) -> Self:
        self._run(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def cut(self) -> None:
        """Cut every connection now."""
        with self._lock:
            links = list(self._links)
        for link in links:
            self._close(link)

    def _run(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._target)
                except OSError:
                    client.close()
                    continue
                with self._lock:
                    self._links |= {client, server}
                allowed = self._random.randrange(self._bytes_between // 2, self._bytes_between * 2)
                self._run(self._pump, client, server, allowed)
                self._run(self._pump, server, client, None)

    def _pump(self, source: socket.socket, sink: socket.socket, allowed: int | None) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(16384):
                passed += len(data)
                if allowed is not None and passed > allowed and self._may_cut():
                    sink.sendall(data[: len(data) // 2])  # in the middle of a frame
                    break
                sink.sendall(data)
        self._close(source)
        self._close(sink)

    def _may_cut(self) -> bool:
        with self._lock:
            self.cuts_left -= 1
            return self.cuts_left >= 0

    def _close(self, link: socket.socket) -> None:
        with self._lock:
            self._links.discard(link)
        with contextlib.suppress(OSError):
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            link.shutdown(socket.SHUT_RDWR)
        link.close()
