"""``make bench-operator``: the operator at scale, and takeover through pods, into docs/benchmarks.md.

Each part writes its own section as soon as it is done; what ``make bench`` wrote stays, and so do
the parts that this run leaves out. ``scale`` and ``idle`` need no root. ``takeover``, ``sidecar`` and ``lease``
share a section, and need root and the two-node lab.

By hand: ``python -m bench.operator_run [--parts scale,takeover] [--crash-rounds 10] [--output FILE]``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench import operator_page as page
from bench import operator_scale as scale
from bench import pod_lab, pod_takeover, report
from bench.machine import LabUnavailable, describe_machine, others_share_now
from bench.report import OUTPUT, command_line
from bench.takeover import Fault, Round
from tests.cluster import binaries, images
from tests.cluster.control_plane import ClusterError

PARTS = ("scale", "idle", "takeover", "sidecar", "lease")
ON_PODS = {"takeover", "sidecar", "lease"}
TOPIC = "contest"
SIDECAR_TOPIC = "sidecar-contest"

Rounds = dict[tuple[str, Fault], Sequence[Round]]


class Teller:
    """Says what is going on, and how long after the start; notes the load at each line."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self.loads: list[float] = []

    def __call__(self, text: str) -> None:
        self.loads.append(os.getloadavg()[0])
        print(f"[{time.monotonic() - self._started:5.0f} s] {text}", flush=True)

    def highest_load(self) -> float:
        """Since it was asked last."""
        self.loads.append(os.getloadavg()[0])
        highest = max(self.loads)
        self.loads.clear()
        return highest


class Run:
    """One run of the command."""

    def __init__(self, given: argparse.Namespace, command: str) -> None:
        self._given = given
        self._command = command
        self._say = Teller()
        self._others_share = others_share_now()
        self._machine = describe_machine()
        self._say(str(self._machine))

    def scale(self) -> None:
        """Bursts of topics, and what they cost at rest."""
        given = self._given
        with scale.scale_lab(given.brokers) as lab:
            if "scale" in given.parts:
                bursts = []
                for topics in given.topics:
                    same = []
                    for _ in range(given.repetitions):
                        same.append(scale.measure_burst(lab, topics))
                        self._say(f"{topics:,} topics Ready after {same[-1].ready_seconds:.2f} s")
                    bursts.append(same)
                text = page.topics_part(bursts, given.brokers, self._conditions())
                self._write(page.TOPICS, text)
            if "idle" in given.parts:
                topics, seconds = given.idle_topics, given.idle_seconds
                self._say(f"{topics:,} idle topics for {seconds:.0f} s")
                quiet = scale.measure_idle(lab, topics, seconds)
                self._write(page.IDLE, page.idle_part(quiet, given.brokers, self._conditions()))

    def takeover(self) -> None:
        """All arms on one lab, one after the other; the topic's first."""
        given = self._given
        rounds: Rounds = {}
        verified = None
        with pod_lab.running(self._say) as pods:
            if "takeover" in given.parts:
                self._say("two writers of one topic")
                with pod_takeover.topic_stage(pods, TOPIC, given.seed, self._say) as stage:
                    self._play(stage, page.OURS, rounds, self._wanted("{}_rounds"))
                verified = pod_takeover.Verified.of(pods.verify(TOPIC))
            if "sidecar" in given.parts:
                self._say("two pods with a sidecar")
                with pod_takeover.sidecar_stage(
                    pods, SIDECAR_TOPIC, given.seed, self._say
                ) as stage:
                    wanted = {Fault.PLANNED: given.sidecar_planned_rounds}
                    self._play(stage, page.SIDECAR, rounds, wanted)
                found = pod_takeover.Verified.of(pods.verify(SIDECAR_TOPIC))
                verified = found if verified is None else verified + found
            if "lease" in given.parts:
                self._say(f"two candidates for each of {given.lease_pairs} Leases")
                with pod_takeover.lease_stage(
                    pods, given.lease_pairs, given.seed, self._say
                ) as stage:
                    self._play(stage, page.LEASE, rounds, self._wanted("lease_{}_rounds"))
        client = f"Python {importlib.metadata.version('pulsar-client')}"
        text = page.takeover_part(rounds, verified, client, self._conditions())
        self._write(page.TAKEOVER, text)

    def _wanted(self, name: str) -> dict[Fault, int]:
        return {fault: getattr(self._given, name.format(fault.value)) for fault in Fault}

    def _play(
        self, stage: pod_takeover.Stage, arm: str, rounds: Rounds, wanted: Mapping[Fault, int]
    ) -> None:
        for fault, count in wanted.items():
            if count >= 2:  # fewer have no percentiles
                rounds[arm, fault] = found = stage.play(fault, count)
                self._say(f"{arm}, {fault.value}: {page.percentiles(found)}")

    def _conditions(self) -> report.Conditions:
        return report.Conditions(
            str(self._machine), self._command, self._others_share, self._say.highest_load()
        )

    def _write(self, title: str, text: str) -> None:
        output: Path = self._given.output
        before = output.read_text() if output.exists() else ""
        output.write_text(page.merged(before, {title: text}))
        print(f"\n{text}\n", flush=True)
        self._say(f'wrote "{title}" into {output}')


def missing(parts: Sequence[str]) -> list[str]:
    """Why these parts cannot be measured here, one sentence each."""
    found = []
    if set(parts) - ON_PODS:
        found += pod_lab.missing_programs(binaries.API)
    if set(parts) & ON_PODS:
        found += [
            f"{each} (or leave it out: --parts scale,idle needs no root and no containers)"
            for each in pod_lab.missing()
        ]
    return found


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    found = argparse.ArgumentParser(
        prog="python -m bench.operator_run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = found.add_argument
    add("--parts", type=_list_of(_part), default=list(PARTS), help="of " + ", ".join(PARTS))
    add("--topics", type=_list_of(_count), default=[10, 100, 500, 1000], help="sizes of bursts")
    add("--repetitions", type=_count, default=3, help="of each burst")
    add("--brokers", type=_count, default=2, help="beside the operator at scale")
    add("--idle-seconds", type=float, default=600.0)
    add("--idle-topics", type=_count, default=1000)
    for fault, count in ((Fault.CRASH, 200), (Fault.PLANNED, 200), (Fault.SILENT, 50)):
        add(f"--{fault.value}-rounds", type=int, default=count, help="of the topic; 0: none")
    add("--sidecar-planned-rounds", type=int, default=200, help="with sidecars; 0: none")
    for fault in Fault:
        add(f"--lease-{fault.value}-rounds", type=int, default=50, help="of the Leases; 0: none")
    add("--lease-pairs", type=_count, default=10, help="elections at the same time")
    add("--seed", type=int, default=1, help="of the pauses before faults")
    add("--output", type=Path, default=OUTPUT)
    return found


def _list_of(kind: Callable[[str], object]) -> Callable[[str], list[object]]:
    def read(text: str) -> list[object]:
        return [kind(each.strip()) for each in text.split(",") if each.strip()]

    return read


def _part(text: str) -> str:
    if text not in PARTS:
        raise argparse.ArgumentTypeError(f"unknown part: {text}")
    return text


def _count(text: str) -> int:
    found = int(text)
    if found < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return found


def main() -> int:
    """Measure what is asked for. Exit code 1: something is missing, or a lab failed."""
    given = parser().parse_args()
    lacking = missing(given.parts)
    if lacking:
        print("bench-operator cannot run here; missing:", *lacking, sep="\n  ", file=sys.stderr)
        return 1
    # Asked to end, it still ends what it has started: a lab is many processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("asked to end"))
    try:
        run = Run(given, command_line("bench.operator_run"))
        if set(given.parts) - ON_PODS:
            run.scale()
        if set(given.parts) & ON_PODS:
            run.takeover()
    except (LabUnavailable, ClusterError, images.CannotBuild, binaries.CannotBuild) as error:
        print(
            f"bench-operator: {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
