"""HTTP requests as bytes: known routes with hostile names, queries, headers and bodies, and broken framing."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final
from urllib.parse import quote

import google_crc32c
from tests.attacks.fuzzing import values
from tests.attacks.fuzzing.routes import STAGED, Route

from onewriter_core.publish_rights import REGISTRATION_HEADER
from onewriter_core.wire.messages import build_batch
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "BREW")

PART_MAGIC = b"OWR1"
"""The first bytes of a staged part (docs/http.md)."""


PARTS, ATTEMPTS, STAGED_VERSIONS = ("0", "1", "2"), ("a", "b"), ("1", "2", "3")
"""Few names, so that a publish finds parts that were staged."""

HELD_TOPIC = "staged"
"""The topic whose registration an attacker may present; no other client may lead it."""

PUBLISHED_VERSION_MAX = 500
"""A version that was published is not published again: this many are tried."""

VALID: Mapping[str, tuple[str, ...]] = {
    "tenant": ("public",),
    "namespace": ("default",),
    "topic": ("fuzzed", "fuzzed", "fuzzed-partition-0", "fuzzed-many"),
    "domain": ("persistent", "non-persistent"),
    "subscription": ("fuzz", "other"),
    "app": ("app",),
    "version": STAGED_VERSIONS,
    "part": PARTS,
    "attempt": ATTEMPTS,
    "key": ("k", "a/b"),
}
"""Values of path variables in most requests, so that the broker reads their bodies."""

VALID_SHARE = 0.85
"""Of the variables of a path; of a path with seven variables a third is right as a whole."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What an attacker shows: its token; the registration and epoch of a topic that it holds."""

    token: str = ""
    registration: str = ""
    epoch: int = 1


NOTHING: Final = Shown()


def request(random: Random, routes: Sequence[Route], host: str, shown: Shown = NOTHING) -> bytes:
    """One request to one of ``routes`` (method, template with ``{names}``), as bytes for a new connection."""
    method, template = random.choice(routes)
    path = _path(random, template)
    has_body = method in {"POST", "PUT", "PATCH"}
    if random.random() < 0.1:
        method = random.choice(METHODS)
    body = b""
    if has_body:
        is_staging = STAGED in template and random.random() < 0.9
        body = _staged_body(random, path, shown) if is_staging else _body(random)
    headers = [f"Host: {host}"]
    if shown.token and random.random() < 0.95:
        headers.append(f"Authorization: Bearer {shown.token}")
    if shown.registration and random.random() < 0.95:
        headers.append(f"{REGISTRATION_HEADER}: {shown.registration}")
    headers += _headers(random, len(body))
    head = f"{method} {path}{_query(random)} HTTP/1.1\r\n" + "\r\n".join(headers) + "\r\n\r\n"
    return values.mutated(random, head.encode("utf-8", "replace"), 0.1) + body


def _path(random: Random, template: str) -> str:
    pieces = []
    for piece in template.split("/"):
        if piece == "{topic}" and STAGED in template and random.random() < VALID_SHARE:
            pieces.append(HELD_TOPIC)
        elif piece == "{version}" and template.endswith("publish"):
            pieces.append(str(random.randint(1, PUBLISHED_VERSION_MAX)))
        elif "{" in piece:
            usual = VALID.get(piece.strip("{}"), ("3", "fuzzed"))
            is_valid = random.random() < VALID_SHARE
            pieces.append(quote(random.choice(usual) if is_valid else values.text(random)[:600]))
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
    if random.random() < 0.3:
        kinds = ("application/json", "application/x-ndjson", "application/vnd.onewriter.messages")
        found.append(f"Content-Type: {random.choice(kinds)}")
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


def _staged_body(random: Random, path: str, shown: Shown) -> bytes:
    """A body that fits the route: rows, or the parts of a publish."""
    if not path.endswith(("/publish", "/discard", "/layout")):
        return _good_part(*path.split("/")[-2:]) if random.random() < 0.5 else _part(random)
    parts = [_named_part(random, part) for part in PARTS[: random.randrange(4)]]
    if random.random() < 0.1:
        parts *= random.choice((2, 500))
    epoch = shown.epoch if random.random() < 0.8 else random.choice((None, values.number(random)))
    body = {"epoch": epoch, "parts": parts, "noted": random.random() < 0.5}
    return values.mutated(random, json.dumps(body).encode("utf-8", "surrogatepass"), 0.2)


def _named_part(random: Random, part: str) -> dict[str, Any]:
    """A part as a publish names it, mostly as staging ``_good_part`` answers."""
    attempt = random.choice(ATTEMPTS)
    good = _good_part(part, attempt)
    found = {
        "key": f"app/{random.choice(STAGED_VERSIONS)}/{part}/{attempt}",
        "rows": GOOD_ROWS,
        "bytes": len(good),
        "checksum": _checksum(good),
    }
    if random.random() < 0.15:
        found |= {random.choice(("rows", "bytes")): values.number(random, 32)}
    if random.random() < 0.1:
        found |= {random.choice(("key", "checksum")): values.text(random)}
    return found


GOOD_ROWS: Final = 3


def _good_part(part: str, attempt: str) -> bytes:
    """The part of that name that is in order."""
    row = (pb.SingleMessageMetadata(), f"{part} {attempt}".encode())
    return PART_MAGIC + _frame(build_batch([row] * GOOD_ROWS), GOOD_ROWS)


def _checksum(body: bytes) -> str:
    """As staging answers it for a part of less than a MiB."""
    crc = struct.pack(">I", google_crc32c.value(body))
    return hashlib.blake2b(crc, digest_size=16).hexdigest()


def _frame(rows: bytes, number: int, lie: int = 0) -> bytes:
    return struct.pack("<II", max(4 + len(rows) + lie, 0) & 0xFFFFFFFF, number) + rows


def _part(random: Random) -> bytes:
    """A staged part: frames of rows, most of them in order; some lie about their size or number."""
    frames = b""
    for _ in range(random.choice((0, 1, 5, 300))):
        if random.random() < 0.7:
            number = random.choice((1, 3, 50))
            row = pb.SingleMessageMetadata(partition_key=values.text(random)[:40])
            data = build_batch([(row, random.randbytes(random.choice((0, 10, 200))))] * number)
        else:
            number, data = 1, random.randbytes(random.choice((0, 10, 4000)))
        lie = random.choice((0, 0, 0, 0, 0, 1, -1, 2**31)) if random.random() < 0.3 else 0
        rows = random.choice((0, 2**32 - 1, 10_001)) if random.random() < 0.1 else number
        frames += _frame(data, rows, lie)
    return values.mutated(random, PART_MAGIC + frames, 0.3)
