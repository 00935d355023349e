"""What tokens, TLS and authorization cost, and whether a change made that mode slower.

    python -m bench.secured [--pairs 15]                       this checkout, secured and plain
    python -m bench.secured --before CHECKOUT [--pairs 15]     that checkout and this one, both secured

Two installations run side by side, and short runs alternate between them: each pair measures one after the other, in
an order that changes. A pair gives a ratio of the two; the medians of the ratios are printed, with the middle half of
them. On a busy machine single figures mean little, and processor time per message means most. Topics are declared and
written with a ProducerClaim. With ``--before`` the command fails if one of the medians is worse than ``SLOWER_MAX``.
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import jwt
from bench import raw_client
from bench.machine import describe_machine
from bench.onewriter_lab import Onewriter
from bench.raw_client import Login
from bench.report import put_secured
from tests.cluster.pki import Authority

from onewriter_testing.ports import free_ports

SLOWER_MAX = 1.05
IN_FLIGHT = 1_000
ALONE = 400
"""Messages of a run in which each waits for its receipt."""
PARTS = ("core", "broker", "client", "operator", "pipeline")
"""Folders of a checkout that hold its packages."""

_TOPIC = """
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {{name: bench-{number}}}
spec: {{access: {{modes: [Shared]}}}}
---
apiVersion: onewriter.dev/v1alpha1
kind: ProducerClaim
metadata: {{name: bench-{number}}}
spec: {{topicRef: {{name: bench-{number}}}, subject: {{tokenSubject: writer}}, mode: Shared}}
"""


@dataclass(frozen=True, slots=True)
class Side:
    """One installation, and how clients come to it."""

    lab: Onewriter
    url: str
    login: Login | None


Figures = Mapping[str, float]
"""Of one run: smaller is better."""


def measure(side: Side, topic: str, messages: int) -> Figures:
    """Publish in a stream, one at a time, and read all of it."""
    before = side.lab.usage().cpu_seconds
    stream = raw_client.publish(
        side.url, topic, messages=messages, in_flight=IN_FLIGHT, login=side.login
    )
    used = side.lab.usage().cpu_seconds - before
    alone = raw_client.publish(side.url, topic, messages=ALONE, in_flight=1, login=side.login)
    before = side.lab.usage().cpu_seconds
    reading = raw_client.read_from_start(
        side.url, topic, messages=messages + ALONE, login=side.login
    )
    used_reading = side.lab.usage().cpu_seconds - before
    return {
        "publish, server CPU per message (us)": 1e6 * used / messages,
        "publish, time per message (us)": 1e6 * stream.seconds / messages,
        "publish one at a time, p50 (us)": 1e3 * statistics.median(alone.latencies_ms),
        "read, server CPU per message (us)": 1e6 * used_reading / (messages + ALONE),
        "read, time per message (us)": 1e6 * reading / (messages + ALONE),
    }


def installation(
    stack: ExitStack, folder: Path, topics: int, checkout: Path | None, *, is_secured: bool
) -> Side:
    """Start one; ``checkout``: another source tree, whose dependencies must be those of this one."""
    manifests = folder / "topics.yaml"
    documents = [_TOPIC.format(number=number) for number in range(topics)]
    if not is_secured:  # clients are anonymous, so no claim matches
        documents = [each.partition("---")[0] for each in documents]
        documents = [
            each.replace("modes: [Shared]", "modes: [Shared], requireClaim: false")
            for each in documents
        ]
    manifests.write_text("---".join(documents))
    environment: dict[str, str] = {}
    if checkout is not None:
        environment["PYTHONPATH"] = ":".join(str(checkout / part) for part in PARTS)
    login = None
    if is_secured:
        authority = Authority(folder / "pki")
        authority.server("broker", ["127.0.0.1", "localhost"])
        secret = secrets.token_hex(32)
        (folder / "secret").write_text(secret)
        port = free_ports(2)
        environment |= {
            "ONEWRITER_TLS_CERT_FILE": str(authority.directory / "broker.crt"),
            "ONEWRITER_TLS_KEY_FILE": str(authority.directory / "broker.key"),
            "ONEWRITER_TLS_PORT": str(port),
            "ONEWRITER_HTTPS_PORT": str(port + 1),
            "ONEWRITER_TOKEN_SECRET_FILE": str(folder / "secret"),
            "ONEWRITER_AUTHENTICATION_REQUIRED": "true",
            "ONEWRITER_ADMIN_SUBJECTS": "boss",
        }
        login = Login(authority.certificate, jwt.encode({"sub": "writer"}, secret, "HS256"))
    lab = Onewriter(environment=environment, arguments=("-f", str(manifests)))
    stack.enter_context(lab)
    url = lab.service_url if login is None else f"pulsar+ssl://127.0.0.1:{port}"
    return Side(lab, url, login)


def compared(pairs: int, make: Callable[[int], tuple[Figures, Figures]]) -> dict[str, list[float]]:
    """The ratios of all pairs, by figure."""
    found: dict[str, list[float]] = {}
    for number in range(pairs):
        former, latter = make(number)
        for name, value in latter.items():
            found.setdefault(name, []).append(value / former[name])
    return found


def table(names: tuple[str, str], ratios: Mapping[str, Sequence[float]]) -> str:
    """The ratios as the page has them."""
    lines = [
        f"| {names[1]} / {names[0]}, smaller is better | median | middle half |",
        "|---|---|---|",
    ]
    for name, values in ratios.items():
        low, middle, high = statistics.quantiles(values, n=4)
        lines.append(f"| {name} | {middle:.2f} | {low:.2f} to {high:.2f} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--before", type=Path, help="a checkout to compare with, secured as well")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--output", type=Path, help="the page to write into: docs/benchmarks.md")
    parser.add_argument("--compared", default="", help="what the page says that --before is")
    request = parser.parse_args(arguments)
    with ExitStack() as stack:
        folders = [
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onewriter-bench-")))
            for _ in range(2)
        ]
        topics = request.pairs + 1
        former = installation(
            stack, folders[0], topics, request.before, is_secured=request.before is not None
        )
        latter = installation(stack, folders[1], topics, None, is_secured=True)

        def pair(number: int) -> tuple[Figures, Figures]:
            topic = f"persistent://public/default/bench-{number}"
            if number % 2:
                second = measure(latter, topic, request.messages)
                return measure(former, topic, request.messages), second
            first = measure(former, topic, request.messages)
            return first, measure(latter, topic, request.messages)

        pair(request.pairs)  # what is done for the first time takes longer
        ratios = compared(request.pairs, pair)
    names = ("plain", "secured") if request.before is None else ("before", "now")
    printed = table(names, ratios)
    print(printed)
    if request.output is not None:
        about = (
            f"Written by `python -m bench.secured`; do not edit.\n\n- Machine: {describe_machine()}\n"
            f"- {request.pairs} pairs of runs in alternation, {request.messages} messages of 1 KiB each, compared with"
            f" {request.compared or 'the same checkout without tokens and TLS'}\n"
            f"- Load average: {os.getloadavg()[0]:.0f}"
        )
        put_secured(request.output, f"{about}\n\n{printed}\n")
    worst = max(statistics.median(values) for values in ratios.values())
    return int(request.before is not None and worst > SLOWER_MAX)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
