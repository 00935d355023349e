"""What 1,000 brokers and 10,000 buckets need: load at rest, buckets that move, and storms of failures.

The decisions are the broker's own code on a virtual clock; the costs are measured ones (simulated_brokers.py).

By hand: ``python -m bench.scale_simulation --brokers 200 --buckets 2000``; ``make simulate-scale`` runs the full size.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from bench.simulated_brokers import (
    Crowd,
    Layout,
    Outcome,
    assignment,
    loads_at_rest,
    moved,
    run_virtually,
    spread,
)

from onewriter_broker.ownership.member_observer import BEAT_SECONDS, MEMBERS_MAX
from onewriter_broker.ownership.placement import Targets

SECONDS_MAX = 60.0
"""Simulated time after a failure; what is not served by then is reported."""

PROMOTED_SECONDS = 2.5
NOTICED_SECONDS = 0.5
"""A replica is promoted, and the brokers find it, after these times (docs/adr/0023)."""


def rest_lines(layout: Layout) -> list[str]:
    """Load at rest, the first bottleneck first."""
    per_shard = layout.brokers / BEAT_SECONDS
    size = layout.brokers * layout.costs.beat_bytes
    lines = [
        f"heartbeats: {per_shard:,.0f}/s and as many readings of {size / 1e3:,.0f} kB on each of {layout.shards} shards",
    ]
    for name, load in loads_at_rest(layout).by_weight():
        lines.append(f"  {load:8.1%}  {name}")
    return lines


def placement_lines(layout: Layout, targets: Targets) -> list[str]:
    """Buckets that move, and how evenly they are spread."""
    names = layout.names
    before = assignment(layout, names, targets)
    joined = assignment(layout, [*names, f"onewriter-broker-{layout.brokers}"], targets)
    left = assignment(layout, names[:-1], targets)
    counts = spread(before, names)
    ideal = layout.buckets / layout.brokers
    return [
        f"buckets that move: {moved(before, joined)} when a broker joins, {moved(before, left)} when one leaves",
        f"buckets per broker: mean {ideal:.1f}, fewest {counts[0]}, p99 {counts[int(len(counts) * 0.99)]}, most {counts[-1]}",
    ]


def outcome_line(what: str, found: Outcome) -> str:
    """One failure for people."""

    def seconds(figure: float) -> str:
        return "never" if math.isinf(figure) else f"{figure:.1f} s"

    detected = (
        "" if math.isinf(found.detected_last) else f"found dead after {found.detected_last:.1f} s; "
    )
    requests = ", ".join(f"{count:,} {kind}" for kind, count in sorted(found.requests.items()))
    return (
        f"{what}: {found.lost_buckets:,} buckets; {detected}half served after {seconds(found.served_half)},"
        f" all after {seconds(found.served_all)}, all topics after {seconds(found.loaded_all)}"
        + (f"; {found.unserved:,} buckets not served" if found.unserved else "")
        + (f"; {found.wrongly_dead} living brokers found dead" if found.wrongly_dead else "")
        + f"\n    API servers: {requests}; at most {found.api_requests_peak:,} requests/s, longest wait"
        f" {found.api_wait:.1f} s; store: at most {found.store_calls_peak:,} calls of takeovers/s"
    )


def failure_lines(
    layout: Layout, targets: Targets, *, seed: int, seconds_max: float = SECONDS_MAX
) -> Iterator[str]:
    """The failures one after the other, each in a new crowd."""
    for what, count in (
        ("1 broker lost", 1),
        ("10% of the brokers lost", layout.brokers // 10),
        ("30% of the brokers lost", layout.brokers * 3 // 10),
    ):
        crowd = Crowd(layout, targets, seed=seed)
        found = run_virtually(crowd.lose_brokers(count, seconds_max=seconds_max))
        yield outcome_line(what, found)
    crowd = Crowd(layout, targets, seed=seed)
    found = run_virtually(
        crowd.lose_shard(
            promoted_after=PROMOTED_SECONDS, noticed_after=NOTICED_SECONDS, seconds_max=seconds_max
        )
    )
    yield outcome_line("1 shard lost, replica promoted", found)


def describe(layout: Layout) -> str:
    """The layout in a line."""
    reads = (
        "reads its own records when they may have changed"
        if layout.reads_own
        else "reads all records each second"
    )
    return (
        f"{layout.brokers:,} brokers, {layout.buckets:,} buckets, {layout.shards} shards, {layout.topics:,} topics;"
        f" {layout.buckets_per_object:,} records in an object of the anchor, a broker {reads};"
        f" {layout.api_cores} cores of API servers"
    )


def layouts(full: Layout) -> list[Layout]:
    """The full size as brokers read the anchor today, smaller installations, and the full size with a finer anchor."""
    return [
        full,
        replace(full, brokers=10, buckets=64, shards=3, topics=10_000, api_cores=4),
        replace(full, brokers=64, buckets=64, shards=3, topics=64_000, api_cores=4),
        replace(full, brokers=10, buckets=256, shards=3, topics=10_000, api_cores=4),
        replace(full, brokers=30, buckets=256, shards=3, topics=30_000, api_cores=4),
        replace(full, brokers=12, buckets=1_024, shards=3, topics=12_000, api_cores=4),
        replace(full, brokers=60, buckets=1_024, shards=3, topics=60_000),
        replace(full, reads_own=True, buckets_per_object=64),
        replace(full, reads_own=True, buckets_per_object=1),
    ]


def report(chosen: Sequence[Layout], *, seed: int, seconds_max: float = SECONDS_MAX) -> None:
    """Simulate the layouts, and print each as soon as it is done."""
    for layout in chosen:
        began = time.monotonic()
        print(f"\n{describe(layout)}")
        if layout.brokers > MEMBERS_MAX:
            print(f"more than MEMBERS_MAX = {MEMBERS_MAX} brokers: simulated with a higher limit")
        lines = rest_lines(layout)
        print("\n".join(lines), flush=True)
        targets = Targets()
        print("\n".join(placement_lines(layout, targets)), flush=True)
        if loads_at_rest(layout).api_server > 1:
            print("the API servers are overloaded at rest, so failures are not simulated")
            continue
        for line in failure_lines(layout, targets, seed=seed, seconds_max=seconds_max):
            print(line, flush=True)
        print(f"(simulated in {time.monotonic() - began:.0f} s)")


def main() -> None:
    """Simulate an installation's membership, placement and failures."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.scale_simulation", description=main.__doc__
    )
    parser.add_argument("--brokers", type=int, default=1_000)
    parser.add_argument("--buckets", type=int, default=10_000)
    parser.add_argument("--shards", type=int, default=32)
    parser.add_argument("--topics", type=int, default=1_000_000)
    parser.add_argument("--api-cores", type=int, default=12, help="of all API servers with etcd")
    parser.add_argument("--only", type=int, help="the number of one layout, from 0")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    full = Layout(
        brokers=given.brokers,
        buckets=given.buckets,
        shards=given.shards,
        topics=given.topics,
        api_cores=given.api_cores,
        members_max=max(MEMBERS_MAX, given.brokers),
    )
    chosen = layouts(full)
    report(chosen if given.only is None else [chosen[given.only]], seed=given.seed)


if __name__ == "__main__":
    main()
