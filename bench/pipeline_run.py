"""``make bench-pipeline``: the pipeline's figures, into the third division of docs/benchmarks.md.

By hand: ``python -m bench.pipeline_run [--parts source,audit] [--repetitions 5] [--output FILE]``.
A short look: ``--messages 100000 --positions 100000 --rows 20000 --repetitions 1``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from bench import pipeline_jobs, pipeline_source
from bench.onewriter_lab import Onewriter
from bench.parts import Division, Part
from bench.report import PIPELINE_HEADING, Report


@dataclass(frozen=True, slots=True)
class Options:
    """How long a run takes."""

    repetitions: int
    messages: int
    positions: int
    """That are audited."""
    rows: int
    """Of each batch of the sink."""


def _source(lab: Onewriter, options: Options) -> Report:
    samples = pipeline_source.measure(lab, options.messages, options.repetitions)
    return pipeline_source.report(samples, options.messages, options.repetitions)


def _offload(lab: Onewriter, options: Options) -> Report:
    with pipeline_source.running_session() as spark:
        return pipeline_jobs.offload(lab, spark, options.messages, options.repetitions)


def _audit(lab: Onewriter, options: Options) -> Report:
    with pipeline_source.running_session() as spark:
        return pipeline_jobs.audit(lab, spark, options.positions, options.repetitions)


def _sink(lab: Onewriter, options: Options) -> Report:
    with pipeline_source.running_session() as spark:
        return pipeline_jobs.sink(lab, spark, options.rows, options.repetitions)


def _memory(lab: Onewriter, options: Options) -> Report:
    with pipeline_source.running_session() as spark:
        return pipeline_jobs.memory(lab, spark, options.messages // 8)


DIVISION = Division[Options](
    PIPELINE_HEADING,
    "bench.pipeline_run",
    "bench-pipeline",
    {
        "source": Part("Reading topics with Spark, compared with a plain Pulsar reader", _source),
        "offload": Part("Offload to a table", _offload),
        "audit": Part("The audit of many positions", _audit),
        "sink": Part("Writing exactly once", _sink),
        "memory": Part("Memory of executors", _memory),
    },
)
"""A new part is one more line here."""


def main() -> int:
    """Measure what is asked for."""
    parser = DIVISION.parser(__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000, help="read and offloaded")
    parser.add_argument("--positions", type=int, default=5_000_000, help="audited")
    parser.add_argument("--rows", type=int, default=500_000, help="of each batch of the sink")
    given = parser.parse_args()
    options = Options(given.repetitions, given.messages, given.positions, given.rows)
    DIVISION.run(DIVISION.chosen(parser, given.parts), options, given.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
