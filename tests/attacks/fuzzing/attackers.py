"""Send seeded hostile input to a server: as a function in a test, or as a process beside one that measures.

    python -m tests.attacks.fuzzing.attackers wire HOST PORT SEED FRAMES [--token TOKEN]
    python -m tests.attacks.fuzzing.attackers http HOST PORT SEED REQUESTS --routes FILE [--token TOKEN] [--tls]

FILE lists pairs of method and path as JSON (``fuzzing.routes`` makes them).
A peer that closes the connection, resets it or does not answer is not an error here: the program that starts the
attack checks the victim. At most ``AT_ONCE`` connections are open, and each one ends after ``CONNECTION_SECONDS``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import ssl
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.attacks.fuzzing import http, wire
from tests.attacks.fuzzing.http import NOTHING, Shown
from tests.attacks.fuzzing.routes import Route

AT_ONCE = 8
CONNECTION_SECONDS = 10.0
ANSWER_SECONDS = 0.05
"""Default time for which an attacker waits for an answer."""
FRAMES_PER_CONNECTION = (3, 40)
READ_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Sent:
    """What an attack sent: connections, and frames or requests of which at least the first byte went out."""

    connections: int
    pieces: int


async def attack_wire(address: tuple[str, int], seed: int, frames: int, *, token: str = "") -> Sent:
    """Send this number of frames; most connections send CONNECT first."""
    random = Random(seed)
    left, connections, sent = frames, 0, 0

    async def one(chosen: Random, number: int) -> int:
        pieces = list(wire.frames(chosen, number))
        if chosen.random() < 0.95:
            pieces.insert(0, wire.hello(token))
        return await _converse(address, pieces, reads=chosen.random() < 0.9, ssl_context=None)

    while left > 0:
        batch = []
        for _ in range(AT_ONCE):
            number = min(left, random.randint(*FRAMES_PER_CONNECTION))
            left -= number
            if number > 0:
                batch.append(one(Random(random.getrandbits(64)), number))
        connections += len(batch)
        sent += sum(await asyncio.gather(*batch))
    return Sent(connections, sent)


async def attack_http(
    address: tuple[str, int],
    seed: int,
    requests: int,
    routes: Sequence[Route],
    *,
    shown: Shown = NOTHING,
    ssl_context: ssl.SSLContext | None = None,
    answer_seconds: float = ANSWER_SECONDS,
) -> Sent:
    """Send this number of requests, each over its own connection. A request without an answer in time is aborted."""
    random = Random(seed)
    host = f"{address[0]}:{address[1]}"
    sent = 0

    async def one(chosen: Random) -> int:
        piece = http.request(chosen, routes, host, shown)
        return await _converse(
            address,
            [piece],
            reads=chosen.random() < 0.95,
            ssl_context=ssl_context,
            answer_seconds=answer_seconds,
        )

    for start in range(0, requests, AT_ONCE):
        number = min(AT_ONCE, requests - start)
        batch = [one(Random(random.getrandbits(64))) for _ in range(number)]
        sent += sum(await asyncio.gather(*batch))
    return Sent(sent, sent)


async def _converse(
    address: tuple[str, int],
    pieces: Sequence[bytes],
    *,
    reads: bool,
    ssl_context: ssl.SSLContext | None,
    answer_seconds: float = 0.0,
) -> int:
    """Send the pieces over one connection; how many were sent before the peer closed it.

    With ``answer_seconds`` the connection ends with the first byte of an answer, otherwise a moment after the last piece.
    """
    sent = 0
    answered = asyncio.Event()
    with contextlib.suppress(OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(CONNECTION_SECONDS):
            reader, writer = await asyncio.open_connection(*address, ssl=ssl_context)
            reading = asyncio.create_task(_drain(reader, answered)) if reads else None  # noqa: TID251 - ended below
            try:
                for piece in pieces:
                    if writer.is_closing() or (reading is not None and reading.done()):
                        break
                    writer.write(piece)
                    sent += 1
                    await asyncio.wait_for(writer.drain(), 1.0)
                if reading is not None:
                    with contextlib.suppress(asyncio.TimeoutError):
                        if answer_seconds:
                            await asyncio.wait_for(answered.wait(), answer_seconds)
                        else:
                            await asyncio.wait_for(asyncio.shield(reading), ANSWER_SECONDS)
            finally:
                if reading is not None:
                    reading.cancel()
                    await asyncio.gather(reading, return_exceptions=True)
                writer.transport.abort()
    return sent


async def _drain(reader: asyncio.StreamReader, answered: asyncio.Event) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(READ_BYTES):
            answered.set()
    answered.set()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kind", choices=("wire", "http"))
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("number", type=int)
    parser.add_argument("--routes", type=Path)
    parser.add_argument("--token", default="")
    parser.add_argument("--registration", default="")
    parser.add_argument("--epoch", type=int, default=1)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--answer-seconds", type=float, default=ANSWER_SECONDS)
    request = parser.parse_args(arguments)
    address = (request.host, request.port)
    if request.kind == "wire":
        sent = asyncio.run(attack_wire(address, request.seed, request.number, token=request.token))
    else:
        context = None
        if request.tls:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        shown = Shown(request.token, request.registration, request.epoch)
        routes = [(method, path) for method, path in json.loads(request.routes.read_text())]
        attack = attack_http(
            address,
            request.seed,
            request.number,
            routes,
            shown=shown,
            ssl_context=context,
            answer_seconds=request.answer_seconds,
        )
        sent = asyncio.run(attack)
    print(json.dumps({"connections": sent.connections, "pieces": sent.pieces}))
    return 0


__all__ = ["Sent", "Shown", "attack_http", "attack_wire"]

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
