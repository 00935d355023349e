"""HTTP requests as bytes: known routes with hostile names, queries, headers and bodies, and broken framing."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from random import Random
from typing import Any
from urllib.parse import quote

from tests.attacks.fuzzing import values

METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "BREW")

PART_MAGIC = b"OWR1"
"""The first bytes of a staged part (docs/http.md)."""


def request(random: Random, routes: Sequence[tuple[str, str]], host: str, token: str = "") -> bytes:
    """One request to one of ``routes`` (method, template with ``{names}``), as bytes for a new connection."""
    method, template = random.choice(routes)
    if random.random() < 0.1:
        method = random.choice(METHODS)
    path = _path(random, template) + _query(random)
    body = _body(random) if method in {"POST", "PUT", "PATCH"} else b""
    headers = [f"Host: {host}"]
    if token and random.random() < 0.9:
        headers.append(f"Authorization: Bearer {token}")
    headers += _headers(random, len(body))
    head = f"{method} {path} HTTP/1.1\r\n" + "\r\n".join(headers) + "\r\n\r\n"
    return values.mutated(random, head.encode("utf-8", "replace"), 0.1) + body


def _path(random: Random, template: str) -> str:
    pieces = []
    for piece in template.split("/"):
        if "{" in piece:
            name = random.choice(("public", "default", "fuzzed", "3", "app"))
            pieces.append(quote(name if random.random() < 0.6 else values.text(random)[:600]))
        else:
            pieces.append(piece)
    return "/".join(pieces)


def _query(random: Random) -> str:
    if random.random() < 0.6:
        return ""
    names = ("limit", "after", "namespace", "from", "to", "force", "stored", "group", "resource")
    pairs = (
        f"{random.choice(names)}={quote(values.text(random)[:300])}"
        for _ in range(random.choice((1, 1, 3)))
    )
    return "?" + "&".join(pairs)


def _headers(random: Random, length: int) -> list[str]:
    found = [f"Content-Length: {length}"] if random.random() < 0.97 else []
    if random.random() < 0.05:
        lie = random.choice((length + 5, -1, 2**63, "x", "٣"))
        found.append(f"Content-Length: {lie}")
    if random.random() < 0.05:
        found.append("Transfer-Encoding: chunked")
    if random.random() < 0.1:
        found.append(f"Content-Encoding: {random.choice(('gzip', 'deflate', 'br', 'identity'))}")
    if random.random() < 0.1:
        origins = ("null", "http://evil.example", "http://[::1", "://", "http://127.0.0.1")
        found.append(f"Origin: {random.choice(origins)}")
    if random.random() < 0.1:
        found.append(f"Sec-Fetch-Site: {random.choice(('cross-site', 'same-origin', 'none'))}")
    if random.random() < 0.05:
        found.append(
            "Authorization: " + random.choice(("Bearer", "Basic eDp5", "Bearer " + "a" * 9000))
        )
    if random.random() < 0.05:
        found.append("X-Padding: " + "p" * random.choice((100, 8200, 60_000)))
    found.append("Connection: close")
    return found


def _body(random: Random) -> bytes:
    match random.choices(("json", "part", "deep", "packed", "bytes"), (55, 20, 5, 10, 10))[0]:
        case "json":
            text = json.dumps(_document(random, 0), ensure_ascii=random.random() < 0.5)
            return values.mutated(random, text.encode("utf-8", "surrogatepass"), 0.2)
        case "part":
            return _part(random)
        case "deep":
            return random.choice((b"[", b'{"a":')) * random.choice((50, 5000, 100_000))
        case "packed":
            return zlib.compress(b"[" * 1_000_000)
        case _:
            return random.randbytes(random.choice((0, 1, 1000, 100_000)))


def _document(random: Random, depth: int) -> Any:
    if depth > 3 or random.random() < 0.4:
        return random.choice(
            (None, True, 0, -1, 2**63, 10**400, 1.5, values.text(random), "\ud800", [], {})
        )
    if random.random() < 0.4:
        return [_document(random, depth + 1) for _ in range(min(values.count(random), 300))]
    names = ("topics", "epoch", "ifEpoch", "to", "parts", "key", "rows", "before", "spec", "noted")
    return {random.choice(names): _document(random, depth + 1) for _ in range(random.randrange(6))}


def _part(random: Random) -> bytes:
    """A staged part: frames with their numbers of rows, some of which lie."""
    frames = [
        (random.choice((1, 3, 0, 2**32 - 1)), random.randbytes(random.choice((0, 10, 4000))))
        for _ in range(random.choice((0, 1, 5)))
    ]
    body = PART_MAGIC + b"".join(
        struct.pack("<II", 4 + len(data), rows) + data for rows, data in frames
    )
    return values.mutated(random, body, 0.5)
