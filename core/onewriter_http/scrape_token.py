"""The static token of a metrics scraper without an identity: setting ``metrics_token_file``."""

from __future__ import annotations

import hmac
import time
from pathlib import Path
from typing import Final

import structlog
from aiohttp import web

READ_AGAIN_SECONDS: Final = 10.0
"""The file is read again after this time, so a new token needs no restart."""

TOKEN_BYTES_MIN: Final = 16
"""A shorter token could be guessed. It is never accepted."""

TOKEN_BYTES_MAX: Final = 4_096

_SCHEME: Final = "bearer "

log = structlog.get_logger(__name__)


class ScrapeToken:
    """The token in a file. Without a file no token is accepted."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._read_at = float("-inf")
        self._token = b""

    def opens(self, request: web.Request) -> bool:
        """Whether the request has the token."""
        shown = request.headers.get("Authorization", "")
        if self._file is None or shown[: len(_SCHEME)].lower() != _SCHEME:
            return False
        token = self._current(self._file)
        given = shown[len(_SCHEME) :].strip().encode("utf-8", "replace")
        return len(token) >= TOKEN_BYTES_MIN and hmac.compare_digest(given, token)

    def _current(self, file: Path) -> bytes:
        now = time.monotonic()
        if now - self._read_at >= READ_AGAIN_SECONDS:
            self._read_at = now
            try:
                with file.open("rb") as stream:
                    self._token = stream.read(TOKEN_BYTES_MAX).strip()
            except OSError as error:
                log.warning("metrics.token_unreadable", file=str(file), reason=error.strerror)
        return self._token
