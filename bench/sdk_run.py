"""``make bench-sdk``: the SDK's figures, into the second division of docs/benchmarks.md.

Each part starts a broker of its own and writes its own section as soon as it is done; what other
commands wrote stays, and so do the parts that this run leaves out.

By hand: ``python -m bench.sdk_run [--parts publish,handover] [--repetitions 5] [--output FILE]``.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench import sdk_handover, sdk_map, sdk_publish
from bench.machine import describe_machine
from bench.onewriter_lab import Onewriter
from bench.report import (
    SDK_HEADING,
    Conditions,
    Goal,
    division_of,
    divisions,
    joined,
    part,
    parts_of,
)

OUTPUT = Path(__file__).parent.parent / "docs" / "benchmarks.md"

_INTRODUCTION = (
    "Written by `make bench-sdk`; do not edit. What is measured how is in\n"
    "[bench/README.md](../bench/README.md)."
)

Report = tuple[str, list[Goal], list[str]]
"""What was done, the goals, and the figures."""


@dataclass(frozen=True, slots=True)
class Options:
    """How long a run takes."""

    repetitions: int
    messages: int
    handovers: int
    operations: int
    """Of the map that is opened from a checkpoint."""


@dataclass(frozen=True, slots=True)
class Part:
    """One section of the page; ``measure`` is given a running broker."""

    title: str
    measure: Callable[[Onewriter, Options], Report]


def _publish(lab: Onewriter, options: Options) -> Report:
    samples = sdk_publish.measure(lab.service_url, options.repetitions, options.messages)
    return sdk_publish.report(samples, options.repetitions, options.messages)


def _handover(lab: Onewriter, options: Options) -> Report:
    return sdk_handover.report(sdk_handover.measure_handovers(lab.service_url, options.handovers))


def _map(lab: Onewriter, options: Options) -> Report:
    return sdk_map.report(sdk_map.measure(lab.service_url, operations=options.operations))


PARTS: Mapping[str, Part] = {
    "publish": Part("Publishing beside the stock Python client", _publish),
    "handover": Part("Handover between two leaders", _handover),
    "map": Part("A shared map", _map),
}
"""In the order of the page; a new part is one more line here."""


def merged(page: str, measured: Mapping[str, str]) -> str:
    """The page with these parts in it, by title; everything else stays."""
    first, sdk, *others = divisions(page)
    parts = {**parts_of(sdk), **measured}
    titles = [each.title for each in PARTS.values()]
    division = division_of(SDK_HEADING, _INTRODUCTION, parts, titles)
    return joined(first.strip() or "# Benchmarks", division, *others)


def run(names: list[str], options: Options, output: Path, command: str) -> None:
    """Measure these parts and write each into the page."""
    machine = describe_machine()
    print(machine, flush=True)
    load_before = machine.load_average_1_minute
    for name in names:
        chosen = PARTS[name]
        began = time.monotonic()
        with Onewriter() as lab:
            text, goals, lines = chosen.measure(lab, options)
        load = os.getloadavg()[0]
        conditions = Conditions(str(machine), command, load_before, load)
        section = part(text, conditions, goals, lines)
        before = output.read_text() if output.exists() else ""
        output.write_text(merged(before, {chosen.title: section}))
        print(f"\n{section}\n\n{name} took {time.monotonic() - began:.0f} s", flush=True)


def main() -> int:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.sdk_run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="of " + ", ".join(PARTS))
    parser.add_argument("--repetitions", type=int, default=5, help="of rates, in alternation")
    parser.add_argument("--messages", type=int, default=60_000, help="of each rate")
    parser.add_argument("--handovers", type=int, default=200)
    parser.add_argument("--operations", type=int, default=1_000_000, help="of the large map")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args()
    names = [name.strip() for name in given.parts.split(",") if name.strip()]
    if unknown := set(names) - set(PARTS):
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}")
    words = sys.argv[1:]
    if "--output" in words:  # where it was written says nothing about what was measured
        at = words.index("--output")
        del words[at : at + 2]
    command = " ".join(["python -m bench.sdk_run", *words])
    options = Options(given.repetitions, given.messages, given.handovers, given.operations)
    run(names, options, given.output, command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
