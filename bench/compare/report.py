"""Writes docs/comparison.md from what one run measured, and says what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bench.compare.scenario import Scenario, Tally
from bench.compare.table import BESIDE, TABLE, Answers, Row

_INTRODUCTION = """\
# Side by side with Apache Pulsar

*Written by `make compare-pulsar`; do not edit. Every figure was measured in the run described here.*

The same scenarios run on Apache Pulsar and on onewriter, over the bare wire protocol, with one
connection for each producer unless they say otherwise. They show what exclusive producers can rely
on under the races and failures that a stock client meets. After them come the decision table of the
access modes, where both must agree, and the list of deliberate differences.
"""

_HOW_TO_READ = """\
## How to read it

* A count is "N of M rounds". Each round has its own topic.
* No fault is injected into either server. The races are real, so Pulsar's counts vary from run to
  run and with the machine. `tests/integration/test_comparison_ours.py` asserts in every test run that
  onewriter's counts are 0.
* Both run with their default durability: Pulsar syncs its journal, the embedded Valkey its
  append-only file, before a message is acknowledged. Broker deduplication is off in Pulsar, as it
  is by default.
* The raw client shares its codec with onewriter. It sends what the C++, Java and Go clients send.
  Where a scenario says so, it uses stock clients.
* The machine had other work to do during the run, so times show only the order of magnitude.
  `docs/benchmarks.md` has speeds.
"""

_DIFFERENCES = """\
## Deliberate differences

`docs/adr/0005-deliberate-differences.md` has the decisions.

* **The fenced producer is notified at once.** It gets CLOSE_PRODUCER after its last receipt, so a
  stock client learns of it without a send, and only that producer ends. With Pulsar it learns of it
  at its next send, when it loses its connection and everything else on it.
* **Epochs jump.** A topic epoch is the number of the fence in the log under which its holder won.
  It rises strictly and is never given out twice. But it does not rise by one: the fences of a
  broker's failover or of a rolled log use numbers too.
* **The epoch is checked before any other producer is affected, and only its holder resumes it.** A
  producer with an older epoch is refused without consequences for others. A producer with the
  current epoch must be its holder, by name and identity. An epoch that was never granted is refused
  and recorded; Pulsar adopts it.
* **A fenced identity cannot fence its successor by accident.** An authenticated client that was
  itself fenced may use ExclusiveWithFencing only if it names the epoch that it wants to fence
  (property `onewriter.if-epoch`). So a zombie that continues never evicts its successor.
* **WaitForExclusive never jumps the queue.** Pulsar's table has one more column, "waiters only": a
  promotion failed, the topic has waiters but no holder, and a new producer overtakes them. onewriter
  tries waiters until one accepts, so that state does not last and the table has no such column.
* **Order of waiters**: priority (PIP-440), then arrival. There are no ties in arrival, so the
  proposal's random choice among equals is not needed.
* **Administrators may fence and hand over** a topic; waiters stay in the queue. Pulsar has no such
  call.
* **Shared state** (PIP-137) changes only when an entry is read from the log, never at the
  acknowledgement. A latest read asks the broker for proof of the log's end instead of writing a
  dummy entry. The grant is kept between writes and handed over on request, instead of a new
  producer for each write (ADR 0013).
* **After a broker's failover the holder has three seconds** to resume before a waiter is promoted.
* **`own`** (Kafka's "Single Reader/Writer") keeps a floor, so generations never restart. Only the same
  identity replaces an owner at an equal generation, and gets the next number. Generation 0 needs a
  permission, leaves an audit record and does not return to 1. After a failover that may have lost
  grants, generations jump. [ADR 0010](adr/0010-ownerships.md).

## What is not shown

Faults of Pulsar that need a failing metadata store, or a broker that stops between two instructions,
cannot be produced from outside. So this page makes no claims about them. Waiters that left or
declined are the failed promotions that a client can cause; both brokers then try the next waiter.
"""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Under what the run was made."""

    machine: str
    versions: Mapping[str, str]
    rounds: int
    command: str


@dataclass(frozen=True, slots=True)
class Results:
    """What one broker did."""

    name: str
    tallies: Mapping[str, Tally]
    answers: Mapping[str, Answers]


def page(circumstances: Circumstances, theirs: Results, ours: Results) -> str:
    """The whole document."""
    scenarios = [tally.scenario for tally in ours.tallies.values()]
    lines = [
        _INTRODUCTION,
        *_circumstances(circumstances),
        *_summary(scenarios, theirs, ours),
        "## The scenarios",
        "",
        *(line for scenario in scenarios for line in _scenario(scenario, theirs, ours)),
        *_table(theirs, ours),
        _DIFFERENCES,
        _HOW_TO_READ,
    ]
    return "\n".join(lines)


def complaints(theirs: Results, ours: Results) -> Iterator[str]:
    """What must not be: our faults, rounds that were not finished, answers that differ unexplained."""
    for tally in ours.tallies.values():
        for measure in tally.scenario.faults:
            if tally.total(measure.key):
                yield f"{tally.scenario.key}: {measure.says}: {tally.cell(measure)}"
    for results in (theirs, ours):
        for tally in results.tallies.values():
            for reason in tally.unfinished:
                yield f"{results.name}, {tally.scenario.key}: {reason}"
    for row in (*TABLE, *BESIDE):
        if not row.difference and str(theirs.answers[row.key]) != str(ours.answers[row.key]):
            yield f"{row.asks}: {theirs.answers[row.key]} there, {ours.answers[row.key]} here"


def _circumstances(circumstances: Circumstances) -> Iterator[str]:
    yield "## The run"
    yield ""
    yield f"* `{circumstances.command}`, {circumstances.rounds} rounds (fewer where a table says so)"
    for what, version in circumstances.versions.items():
        yield f"* {what}: {version}"
    yield f"* Machine: {circumstances.machine}"
    yield ""


def _summary(scenarios: list[Scenario], theirs: Results, ours: Results) -> Iterator[str]:
    yield "## In short"
    yield ""
    yield f"| what must not happen | {theirs.name} | {ours.name} |"
    yield "|---|---|---|"
    for scenario in scenarios:
        for measure in scenario.faults:
            cells = [results.tallies[scenario.key].cell(measure) for results in (theirs, ours)]
            yield f"| [{scenario.key}](#{scenario.key}): {measure.says} | {cells[0]} | {cells[1]} |"
    yield ""


def _scenario(scenario: Scenario, theirs: Results, ours: Results) -> Iterator[str]:
    yield f"### {scenario.key}"
    yield ""
    yield f"**{scenario.title}.** {scenario.description}"
    yield ""
    yield f"| | {theirs.name} | {ours.name} |"
    yield "|---|---|---|"
    tallies = [results.tallies[scenario.key] for results in (theirs, ours)]
    for measure in scenario.measures:
        yield f"| {measure.says} | {tallies[0].cell(measure)} | {tallies[1].cell(measure)} |"
    if any(tally.unfinished for tally in tallies):
        counts = [str(len(tally.unfinished)) for tally in tallies]
        yield f"| rounds that could not be finished | {counts[0]} | {counts[1]} |"
    yield ""


def _table(theirs: Results, ours: Results) -> Iterator[str]:
    yield "## The decision table"
    yield ""
    yield (
        "For each access mode of a new producer and each state of the topic: the broker's answer, and "
        "the effect on the other producers."
    )
    yield ""
    yield from _rows(TABLE, theirs, ours)
    yield "More cases, with names and epochs:"
    yield ""
    yield from _rows(BESIDE, theirs, ours)


def _rows(rows: tuple[Row, ...], theirs: Results, ours: Results) -> Iterator[str]:
    yield f"| new producer | {theirs.name} | {ours.name} | |"
    yield "|---|---|---|---|"
    for row in rows:
        there, here = str(theirs.answers[row.key]), str(ours.answers[row.key])
        verdict = "same" if there == here else f"differs: {row.difference or 'UNEXPLAINED'}"
        yield f"| {row.asks} | {there} | {here} | {verdict} |"
    yield ""
