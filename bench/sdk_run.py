"""``make bench-sdk``: the SDK's figures, into the second division of docs/benchmarks.md.

By hand: ``python -m bench.sdk_run [--parts publish,handover] [--repetitions 5] [--output FILE]``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from bench import sdk_handover, sdk_map, sdk_publish
from bench.onewriter_lab import Onewriter
from bench.parts import Division, Part
from bench.report import SDK_HEADING, Report


@dataclass(frozen=True, slots=True)
class Options:
    """How long a run takes."""

    repetitions: int
    messages: int
    handovers: int
    operations: int
    """Of the map that is opened from a checkpoint."""


def _publish(lab: Onewriter, options: Options) -> Report:
    samples = sdk_publish.measure(lab.service_url, options.repetitions, options.messages)
    return sdk_publish.report(samples, options.repetitions, options.messages)


def _handover(lab: Onewriter, options: Options) -> Report:
    return sdk_handover.report(sdk_handover.measure_handovers(lab.service_url, options.handovers))


def _map(lab: Onewriter, options: Options) -> Report:
    return sdk_map.report(sdk_map.measure(lab.service_url, operations=options.operations))


DIVISION = Division[Options](
    SDK_HEADING,
    "bench.sdk_run",
    "bench-sdk",
    {
        "publish": Part("Publishing, compared with the stock Python client", _publish),
        "handover": Part("Handover between two leaders", _handover),
        "map": Part("A shared map", _map),
    },
)
"""A new part is one more line here."""


def main() -> int:
    """Measure what is asked for."""
    parser = DIVISION.parser(__doc__)
    parser.add_argument("--messages", type=int, default=60_000, help="of each rate")
    parser.add_argument("--handovers", type=int, default=200)
    parser.add_argument("--operations", type=int, default=1_000_000, help="of the large map")
    given = parser.parse_args()
    options = Options(given.repetitions, given.messages, given.handovers, given.operations)
    DIVISION.run(DIVISION.chosen(parser, given.parts), options, given.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
