"""The release key: a random text in a file that only those who may release the topic or owned resources can read.

``POST /release`` and ``DELETE /own`` need it. Over TCP every process of the pod reaches the API, so a request has to
carry the key. Over the unix socket the permissions of the socket decide, as those of the file do for the key.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Final

import structlog
from aiohttp import web

from onewriter.sidecar.errors import Failure

KEY_MODE: Final = 0o440
"""Permissions of the file: its owner and its group may read the key."""

KEY_BYTES: Final = 32
"""Random bytes of a key."""

log = structlog.get_logger(__name__)


class ReleaseKey:
    """The key of one sidecar process. Call ``create`` and ``remove`` once each; without a path there is no key."""

    def __init__(self, path: Path | None, *, is_required: bool = True) -> None:
        self._path = path
        self._is_required = is_required
        self._key = secrets.token_urlsafe(KEY_BYTES)
        self._why_none = "" if path is not None else "set ONEWRITER_SIDECAR_RELEASE_KEY_FILE"

    def create(self) -> None:
        """Write a new key, in place of an earlier process's.

        Without the file the sidecar works, but no release over TCP is accepted.
        """
        if self._path is None:
            return
        written = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
        try:
            # A file of its own, so that no process has opened it before its permissions were set.
            descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.write(descriptor, f"{self._key}\n".encode())
                os.fchmod(descriptor, KEY_MODE)
            finally:
                os.close(descriptor)
            written.replace(self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                written.unlink()
            self._why_none = f"it cannot write {self._path}: {error.strerror}"
            log.warning("sidecar.no_release_key", file=str(self._path), reason=error.strerror)

    def remove(self) -> None:
        """Remove the file, unless it holds the key of another process."""
        if self._path is None:
            return
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if self._path.read_text().strip() == self._key:
                self._path.unlink()

    def check(self, request: web.Request) -> None:
        """Check a request to release something. Raises Failure if it came over TCP without the key."""
        if not self._is_required or not is_tcp(request):
            return
        if self._why_none:
            raise Failure(
                401,
                "no-key",
                f"a release over TCP needs a release key, and this sidecar has none ({self._why_none}); "
                "use the unix socket, or send the sidecar SIGUSR1",
            )
        scheme, _, given = request.headers.get("Authorization", "").strip().partition(" ")
        # Bytes: compare_digest refuses text that is not ASCII.
        is_given = hmac.compare_digest(
            given.strip().encode(errors="surrogateescape"), self._key.encode()
        )
        if scheme.lower() != "bearer" or not is_given:
            raise Failure(
                401,
                "wrong-key",
                'a release over TCP needs the release key: send "Authorization: Bearer KEY" with the '
                f"present content of {self._path}",
            )


def is_tcp(request: web.Request) -> bool:
    """Whether the request arrived over TCP; for a unix socket, the Host header is arbitrary."""
    transport = request.transport
    name = None if transport is None else transport.get_extra_info("sockname")
    return isinstance(name, tuple)
