"""Writes docs/comparison.md from what one run measured, and says what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bench.compare.scenario import Scenario, Tally
from bench.compare.table import BESIDE, TABLE, Answers, Row

_INTRODUCTION = """\
# Side by side with Apache Pulsar

*Written by `make compare-pulsar`; do not edit. Every figure was measured in the run described here.*

The same scenarios over the bare wire protocol, one connection for each producer unless they say
otherwise, on Apache Pulsar and on onewriter: what exclusive producers are promised, under the races
and failures that a stock client meets. Beneath them is the decision table of the access modes, where
both must agree, and the list of what we do otherwise on purpose.
"""

_HOW_TO_READ = """\
## How to read it

* A count is "so many of so many rounds". Each round has a topic of its own.
* Nothing is injected into either server. The races are real, so Pulsar's counts vary from run to
  run and with the machine; ours are asserted to be 0 by `tests/integration/test_comparison_ours.py`
  in every test run.
* Both run with their default durability: Pulsar syncs its journal, the embedded Valkey its
  append-only file, before a message is acknowledged. Broker deduplication is off in Pulsar, as it
  is by default.
* The raw client shares its codec with onewriter. It does what the C++, Java and Go clients do on
  the wire; where a scenario says so, stock clients play it.
* Times are those of a machine that had other work to do; they are worth their order of magnitude.
  `docs/benchmarks.md` has speeds.
"""

_DIFFERENCES = """\
## What we do otherwise on purpose

`docs/adr/0005-deliberate-differences.md` holds the decisions.

* **The loser is told at once.** It gets CLOSE_PRODUCER behind its last receipt, so a stock client
  learns of it without having to send, and only that producer ends. Pulsar lets it find out at its
  next send, by the loss of its connection and of everything else on it.
* **Epochs jump.** A topic epoch is the number of the fence in the log under which its holder won.
  It rises strictly and is never given twice, but not by one: the fences of a broker's failover or
  of a rolled log use numbers too.
* **An epoch is checked before anybody is touched, and only its holder resumes it.** A producer that
  names an older epoch is refused without consequence to others. One that names the current epoch
  must be its holder, by name and identity. One that names an epoch that was never granted is
  refused and noted; Pulsar adopts it.
* **A deposed identity does not fence back blindly.** An authenticated client that was itself deposed
  may use ExclusiveWithFencing only by naming the epoch that it deposes (property
  `onewriter.if-epoch`), so a woken zombie never evicts its successor.
* **WaitForExclusive never jumps the queue.** Pulsar's table has one more column, "waiters only": a
  promotion failed and the topic has waiters but no owner, and a newcomer overtakes them. Here
  promotion goes on until one waiter takes it, so that state does not last and the column is left
  out.
* **Order among waiters** is priority (PIP-440), then arrival. Arrival cannot tie, so the random
  choice among equals of the proposal has nothing left to decide.
* **Administrators may fence and hand over** a topic; those who wait stay in line when they do. Pulsar
  has no such call.
* **A broker's failover leaves the holder three seconds** to come back before a waiter is promoted.
* **Decided for parts that are still to come**: `own` (Kafka's "Single Reader/Writer") will keep a
  floor, let an owner be replaced at an equal generation only by the same identity, and need a
  permission for generation 0; a linearizable read (PIP-137) will use a barrier, not a dummy write.

## What is not shown

Faults of Pulsar that need a failing metadata store or a broker halted between two instructions
cannot be produced from outside, so nothing about them is claimed here. Waiters that left or that
decline are such promotions as a client can make fail; both brokers then try the next one.
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
    yield f"**{scenario.title}.** {scenario.story}"
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
    yield "A newcomer's access mode against who is there. Its answer, and what becomes of the others."
    yield ""
    yield from _rows(TABLE, theirs, ours)
    yield "Beside the table: names and epochs."
    yield ""
    yield from _rows(BESIDE, theirs, ours)


def _rows(rows: tuple[Row, ...], theirs: Results, ours: Results) -> Iterator[str]:
    yield f"| newcomer | {theirs.name} | {ours.name} | |"
    yield "|---|---|---|---|"
    for row in rows:
        there, here = str(theirs.answers[row.key]), str(ours.answers[row.key])
        verdict = "same" if there == here else f"differs: {row.difference or 'UNEXPLAINED'}"
        yield f"| {row.asks} | {there} | {here} | {verdict} |"
    yield ""
