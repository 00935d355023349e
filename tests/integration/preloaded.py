"""What processes that are forked for tests find done: imports, and the patterns of the broker's HTTP routes."""

from __future__ import annotations

import gc
from unittest.mock import MagicMock

import onewriter.sidecar.cli  # noqa: F401
import onewriter_broker.process  # noqa: F401
from onewriter_broker.http.server import HttpServer


def compile_routes() -> None:
    """Build the routes once: ``re`` remembers the patterns, a third of the work of a broker's start."""
    site = MagicMock()
    site.addresses.http_url = "http://127.0.0.1:1"
    HttpServer(site)


compile_routes()
gc.collect()
gc.freeze()  # a collection in a forked process need not touch, and so copy, what was here before
