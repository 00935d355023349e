"""The operator's half of docs/benchmarks.md: what was measured, in tables, each goal with its verdict.

Pure. Each part says itself under which conditions it was measured, so that one can be measured anew
and the others stay as they are.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from bench import report
from bench.operator_scale import Burst, Idle
from bench.pod_takeover import Verified
from bench.report import Conditions, Value, number, part, table
from bench.scenarios import Latencies
from bench.takeover import Fault, Round

TOPICS, IDLE, TAKEOVER = (
    "Topics until they are Ready",
    "While nothing happens",
    "Takeover through pods",
)
TITLES = (TOPICS, IDLE, TAKEOVER)

GOAL_TOPICS = 1_000
GOAL_READY_SECONDS = 10
GOAL_RESIDENT_MB = 200
GOAL_CRASH_MS, GOAL_PLANNED_MS, GOAL_SILENT_MS = 250, 200, 3_000
GOAL_SIDECAR_P50_MS, GOAL_SIDECAR_P99_MS = 300, 1_000

OURS, SIDECAR, LEASE = "onewriter", "sidecar", "Lease"
ARMS = (OURS, SIDECAR, LEASE)


def merged(page: str, measured: Mapping[str, str]) -> str:
    """The page with these parts in it, by title; everything else stays."""
    return report.merged(page, report.OPERATOR_HEADING, "bench-operator", TITLES, measured)


# ---- the parts ----------------------------------------------------------------------------------


def topics_part(bursts: Sequence[Sequence[Burst]], brokers: int, conditions: Conditions) -> str:
    """Bursts of topics: repetitions of each size."""
    text = (
        f"A real API server with its etcd, {brokers} brokers, their store and the operator. From the "
        "first create (20 in flight, by the official Python client) to the last topic whose status "
        f"says Ready, as a watch shows it; medians of {len(bursts[0])}. CPU and memory are the "
        "operator's."
    )
    rows = [
        [
            f"{same[0].topics:,}",
            f"{_median(same, 'created_seconds'):.2f} s",
            f"{_median(same, 'half_seconds'):.2f} s",
            f"{_median(same, 'ready_seconds'):.2f} s",
            f"{_median(same, 'status_writes'):,.0f}",
            f"{_median(same, 'cpu_seconds'):.2f} s",
            f"{_median(same, 'resident_bytes') / 1e6:.0f} MB",
        ]
        for same in bursts
    ]
    names = ("topics", "created", "half Ready", "all Ready", "status writes", "CPU", "memory")
    full = next((same for same in bursts if same[0].topics == GOAL_TOPICS), None)
    seconds = None if full is None else _median(full, "ready_seconds")
    memory = None if full is None else max(each.resident_bytes for each in full) / 1e6
    goals = [
        (
            f"{GOAL_TOPICS:,} topics Ready in less than {GOAL_READY_SECONDS} s",
            Value(seconds, "s", at_most=GOAL_READY_SECONDS),
        ),
        (
            f"operator below {GOAL_RESIDENT_MB} MB at {GOAL_TOPICS:,} topics",
            Value(memory, "MB", at_most=GOAL_RESIDENT_MB),
        ),
    ]
    published = (
        "Published for comparison: Strimzi's own scalability suite had 125 topics ready in 42.4 s and "
        "250 in 74.6 s, on other machines."
    )
    return part(text, conditions, goals, [*table(names, rows), "", published])


def idle_part(quiet: Idle, brokers: int, conditions: Conditions) -> str:
    """What the operator costs while nobody uses its topics."""
    text = (
        f"The same parts ({brokers} brokers) with {quiet.topics:,} Ready topics, for "
        f"{_duration(quiet.seconds)}: requests that change something, as the API server counts them."
    )
    rows = [
        ["writes except of Leases", f"{quiet.writes:,}"],
        [
            "writes of Leases: the operator's one, and the API server's own",
            f"{quiet.lease_writes:,}",
        ],
        ["operator's CPU", f"{quiet.cpu_seconds / quiet.seconds * 100:.1f}% of a core"],
        ["operator's memory", f"{quiet.resident_bytes / 1e6:.0f} MB"],
    ]
    goals = [
        ("no write except of Leases", Value(float(quiet.writes), "writes", at_most=0, digits=0)),
        (
            f"operator below {GOAL_RESIDENT_MB} MB at {quiet.topics:,} topics",
            Value(quiet.resident_bytes / 1e6, "MB", at_most=GOAL_RESIDENT_MB),
        ),
    ]
    return part(text, conditions, goals, table(("", ""), rows))


def takeover_part(
    rounds: Mapping[tuple[str, Fault], Sequence[Round]],
    verified: Verified | None,
    client: str,
    conditions: Conditions,
) -> str:
    """Rounds by arm (of ARMS) and fault."""
    text = (
        "The chart on two nodes that run containers: two brokers, Valkey with `appendfsync always`, two "
        f"operators. A Deployment of two pods, one per node: with the stock Pulsar client ({client}, "
        "WaitForExclusive, a message each 5 ms); for the column *sidecar*, with an injected sidecar that has the "
        "chart's default resources, and an application in plain Python that SIGTERM ends at once; for the column "
        "*Lease*, with client-go's election (15 s, 10 s, 2 s, jitter 1.2; released when the pod leaves; a line "
        "written each 20 ms). "
        "Leaderless: the former leader's last write to the new one's first. Crash: `kill -9` of the "
        "writer's process; silent: SIGSTOP; planned: its pod is deleted."
    )
    rows = [
        [
            f"{fault.value}, {label}",
            *(_cell(rounds.get((arm, fault), ()), figure, pick) for arm in ARMS),
        ]
        for fault in Fault
        for figure, label, pick in _TAKEOVER_ROWS
        if any((arm, fault) in rounds for arm in ARMS)
    ]
    counts = "; ".join(
        f"{fault.value} " + ", ".join(str(len(rounds.get((arm, fault), ()))) for arm in ARMS)
        for fault in Fault
    )
    lines = table(("leaderless", *ARMS), rows)
    lines += ["", f"Rounds with the stock client, with the sidecar, and with the Lease: {counts}."]
    goals = [
        ("crash: p99 below 250 ms", _value(rounds, Fault.CRASH, "p99", GOAL_CRASH_MS)),
        ("planned: p99 below 200 ms", _value(rounds, Fault.PLANNED, "p99", GOAL_PLANNED_MS)),
        ("silent: never longer than 3 s", _value(rounds, Fault.SILENT, "maximum", GOAL_SILENT_MS)),
        (
            "planned, sidecar: p50 at most 300 ms",
            _value(rounds, Fault.PLANNED, "p50", GOAL_SIDECAR_P50_MS, SIDECAR),
        ),
        (
            "planned, sidecar: p99 at most 1 s",
            _value(rounds, Fault.PLANNED, "p99", GOAL_SIDECAR_P99_MS, SIDECAR),
        ),
    ]
    if verified is not None:
        lines.append(
            f"`onewriter verify` of the topic's log afterwards: {verified.entries:,} entries, "
            f"{verified.violations} violations."
        )
        claim = Value(float(verified.violations), "violations", at_most=0, digits=0)
        goals.append(("stale appends in the log: none", claim))
    return part(text, conditions, goals, lines)


_TAKEOVER_ROWS = (
    ("leaderless", "p50", "p50"),
    ("leaderless", "p99", "p99"),
    ("leaderless", "longest", "maximum"),
    ("fault_to_append", "fault to first write, p50", "p50"),
)


def percentiles(rounds: Sequence[Round], figure: str = "leaderless") -> Latencies | None:
    """Of one figure over the rounds; None for fewer than two."""
    samples = [float(getattr(done, figure)) for done in rounds]
    return Latencies.of(samples) if len(samples) > 1 else None


def _value(
    rounds: Mapping[tuple[str, Fault], Sequence[Round]],
    fault: Fault,
    pick: str,
    at_most: float,
    arm: str = OURS,
) -> Value:
    found = percentiles(rounds.get((arm, fault), ()))
    return Value(None if found is None else float(getattr(found, pick)), "ms", at_most=at_most)


def _cell(rounds: Sequence[Round], figure: str, pick: str) -> str:
    found = percentiles(rounds, figure)
    if found is None:
        return number(None, "ms")
    milliseconds = float(getattr(found, pick))
    if milliseconds >= 1_000:
        return number(milliseconds / 1_000, "s", 2)
    return number(milliseconds, "ms", 1)


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} s"


def _median(same: Sequence[Burst], name: str) -> float:
    return statistics.median(float(getattr(each, name)) for each in same)
