"""How long a topic, or a Lease, stays without a writer when the pod that has it fails or leaves.

Two pods of one Deployment compete for it (``bench.pods``). This process makes the leader fail and notes the time. All
processes use the machine's monotonic clock, which containers share. The leaderless time is from the former leader's last
write to the new leader's first write. The benchmark plays the same rounds for a topic with the stock Pulsar client and for
Leases with client-go's algorithm and constants. It plays many Leases at once, because they mostly sleep.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.pod_lab import AUTHORITY, TOKEN, URL, PodLab, Say
from bench.pods.notes import stamps
from bench.takeover import Fault, Round

POLL_SECONDS = 0.05
"""The figures are the candidates' own stamps: looking often would only take time from them."""

TAKEOVER_SECONDS_MAX = 120.0
START_SECONDS_MAX = 90.0
"""Until a candidate asks: a new pod, and the interpreter's start on a busy machine."""

SAY_SECONDS = 15.0

TOPIC_PACE_SECONDS = 0.005
LEASE_PACE_SECONDS = 0.02
"""Between two writes of a leader: so much of a window may be the pace."""

TOPIC_SETTLE_SECONDS = (0.5, 0.8)
"""From a waiter's request to the fault: the client does not tell when it is queued."""

LEASE_SETTLE_SECONDS = (5.0, 9.0)
"""Several polls of a candidate (2 to 4.4 s), so that faults fall anywhere between two renewals."""

_SIGNALS = {Fault.CRASH: signal.SIGKILL, Fault.SILENT: signal.SIGSTOP}


@dataclass(frozen=True, slots=True)
class Candidate:
    """One process of a candidate, by its file of notes, ``POD.NUMBER``."""

    file: Path

    @property
    def pod(self) -> str:
        return self.file.name.rpartition(".")[0]

    @property
    def number(self) -> int:
        return int(self.file.name.rpartition(".")[2])

    def stamps(self, event: str) -> list[int]:
        return stamps(self.file.read_text(), event)

    def first(self, event: str) -> int | None:
        found = self.stamps(event)
        return found[0] if found else None


class Contest:
    """One topic or Lease for which the pods compete, with the notes of all candidates."""

    def __init__(self, directory: Path) -> None:
        self.name = directory.name
        self._directory = directory
        self._gone: set[str] = set()

    def candidates(self) -> list[Candidate]:
        """The newest candidate of each pod."""
        newest: dict[str, Candidate] = {}
        for file in self._directory.iterdir():
            candidate = Candidate(file)
            if candidate.pod in self._gone:
                continue
            if candidate.pod not in newest or newest[candidate.pod].number < candidate.number:
                newest[candidate.pod] = candidate
        return list(newest.values())

    def leader(self) -> Candidate | None:
        """The candidate that was granted it last."""
        granted = [(candidate.first("granted"), candidate) for candidate in self.candidates()]
        found = [(stamp, candidate) for stamp, candidate in granted if stamp is not None]
        return max(found, key=lambda pair: pair[0])[1] if found else None

    def is_settled(self) -> bool:
        """Whether one candidate leads and writes, and another one waits."""
        leader = self.leader()
        others = [candidate for candidate in self.candidates() if candidate != leader]
        return (
            leader is not None
            and leader.first("appended") is not None
            and any(candidate.first("asking") is not None for candidate in others)
        )

    def successor(self, former: Candidate, since: int) -> Candidate | None:
        """Another candidate that has written after a time; None if there is none yet."""
        for candidate in self.candidates():
            if (
                candidate != former
                and (first := candidate.first("appended")) is not None
                and first > since
            ):
                return candidate
        return None

    def forget(self, candidate: Candidate) -> None:
        """Delete the notes of a candidate that has ended, and of earlier ones in the same pod."""
        for file in self._directory.glob(f"{candidate.pod}.*"):
            if Candidate(file).number <= candidate.number:
                file.unlink()

    def forget_pod(self, pod: str) -> None:
        """Ignore the notes of a pod that is being deleted."""
        self._gone.add(pod)
        for file in self._directory.glob(f"{pod}.*"):
            file.unlink()


def measured(former: Candidate, successor: Candidate, fault_at: int) -> Round:
    """What a takeover's notes say. Raises RuntimeError if the successor wrote before the fault."""
    appended_at, granted_at = successor.first("appended"), successor.first("granted")
    last = former.stamps("appended")[-1]
    if appended_at is None or granted_at is None or appended_at < fault_at:
        raise RuntimeError(f"{successor.file.name} wrote while {former.file.name} was still there")
    return Round(
        leaderless=(appended_at - last) / 1e6,
        fault_to_granted=(granted_at - fault_at) / 1e6,
        fault_to_append=(appended_at - fault_at) / 1e6,
    )


def process_of(candidate: Candidate, contest: Contest) -> int:
    """A candidate's process as this machine numbers it. Raises ProcessLookupError."""
    wanted = f"/notes/{contest.name}/{candidate.file.name}".encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if wanted in path.read_bytes().split(b"\0"):
                return int(path.parent.name)
    raise ProcessLookupError(f"{candidate.file.name} does not run")


class Stage:
    """Two pods that compete for topics or Leases, and the faults that they suffer."""

    def __init__(
        self,
        pods: PodLab,
        contests: Sequence[str],
        settle_seconds: tuple[float, float],
        seed: int,
        say: Say,
    ) -> None:
        self._pods = pods
        self._contests = [Contest(pods.notes / name) for name in contests]
        self._settle = settle_seconds
        self._random = random.Random(seed)
        self._say = say
        self._said_at = time.monotonic()
        self._lock = threading.Lock()

    def play(self, fault: Fault, rounds: int) -> list[Round]:
        """Play at least ``rounds`` takeovers, spread over the contests.

        Raises TimeoutError if no pod takes over, RuntimeError if a round is not a fair one.
        """
        if fault is Fault.PLANNED:
            return self._deletions(rounds)
        done: list[Round] = []
        each = -(-rounds // len(self._contests))
        seeds = [self._random.random() for _ in self._contests]

        def play_contest(contest: Contest, seed: float) -> None:
            randomness = random.Random(seed)
            for _ in range(each):
                found = self._kill(contest, fault, randomness.uniform(*self._settle))
                with self._lock:
                    done.append(found)
                    self._progress(fault, done, each * len(self._contests))

        with ThreadPoolExecutor(len(self._contests)) as pool:
            for result in [*map(pool.submit, [play_contest] * len(seeds), self._contests, seeds)]:
                result.result()
        return done

    def _kill(self, contest: Contest, fault: Fault, settle_seconds: float) -> Round:
        """Kill or freeze the leader's process; its supervisor starts it again."""
        leader = self._settled(contest, settle_seconds)
        process = process_of(leader, contest)
        fault_at = time.monotonic_ns()
        os.kill(process, _SIGNALS[fault])
        found = measured(leader, self._successor(contest, leader, fault_at), fault_at)
        if fault is Fault.SILENT:
            os.kill(process, signal.SIGKILL)
        self._until(
            lambda: self._is_restarted(contest, leader), f"{contest.name}: no second candidate"
        )
        contest.forget(leader)
        return found

    def _deletions(self, rounds: int) -> list[Round]:
        """Delete the pod that leads most contests, again and again."""
        done: list[Round] = []
        while len(done) < rounds:
            settle_seconds = self._random.uniform(*self._settle)
            for contest in self._contests:
                self._settled(contest, 0.0)
            time.sleep(settle_seconds)
            leaders = {contest: self._settled(contest, 0.0) for contest in self._contests}
            pod = collections.Counter(candidate.pod for candidate in leaders.values()).most_common(
                1
            )[0][0]
            leaving = {
                contest: candidate for contest, candidate in leaders.items() if candidate.pod == pod
            }
            fault_at = time.monotonic_ns()
            self._pods.delete_pod(pod)
            for contest, leader in leaving.items():
                successor = self._successor(contest, leader, fault_at)
                done.append(measured(leader, successor, fault_at))
            for contest in self._contests:
                contest.forget_pod(pod)
            self._progress(Fault.PLANNED, done, rounds)
        return done

    # ------------------------------------------------------------ waiting

    def _settled(self, contest: Contest, settle_seconds: float) -> Candidate:
        """The leader, once another candidate has asked long enough ago."""
        self._until(contest.is_settled, f"{contest.name}: not two candidates", START_SECONDS_MAX)
        before = contest.leader()
        time.sleep(settle_seconds)
        leader = contest.leader()
        if leader is None or leader != before:
            raise RuntimeError(f"{contest.name} got another writer without a takeover")
        return leader

    def _successor(self, contest: Contest, former: Candidate, since: int) -> Candidate:
        found: list[Candidate] = []

        def is_there() -> bool:
            candidate = contest.successor(former, since)
            found.extend([candidate] if candidate is not None else [])
            return candidate is not None

        self._until(is_there, f"no candidate took over {contest.name}")
        return found[0]

    @staticmethod
    def _is_restarted(contest: Contest, former: Candidate) -> bool:
        return any(
            each.pod == former.pod and each.number > former.number for each in contest.candidates()
        )

    @staticmethod
    def _until(holds: Callable[[], bool], what: str, seconds: float = TAKEOVER_SECONDS_MAX) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} after {seconds:.0f} s")
            time.sleep(POLL_SECONDS)

    def _progress(self, fault: Fault, done: Sequence[Round], rounds: int) -> None:
        now = time.monotonic()
        if now - self._said_at >= SAY_SECONDS or len(done) >= rounds:
            self._said_at = now
            last = done[-1].leaderless
            self._say(f"{fault.value}: {len(done)} of {rounds} rounds, the last {last:,.1f} ms")


@contextlib.contextmanager
def topic_stage(pods: PodLab, topic: str, seed: int, say: Say) -> Iterator[Stage]:
    """Two pods with the stock Pulsar client and one topic."""
    pods.declare(topic)
    options = (f"--url={URL}", f"--token={TOKEN}", f"--authority={AUTHORITY}")
    with pods.pods("topic", [topic], TOPIC_PACE_SECONDS, options):
        yield Stage(pods, [topic], TOPIC_SETTLE_SECONDS, seed, say)


@contextlib.contextmanager
def sidecar_stage(pods: PodLab, topic: str, seed: int, say: Say) -> Iterator[Stage]:
    """The same with an injected sidecar in each pod, which has the connection to the brokers."""
    pods.declare(topic)
    with pods.pods("sidecar", [topic], TOPIC_PACE_SECONDS, led_topic=topic):
        yield Stage(pods, [topic], TOPIC_SETTLE_SECONDS, seed, say)


@contextlib.contextmanager
def lease_stage(pods: PodLab, pairs: int, seed: int, say: Say) -> Iterator[Stage]:
    """The same pods with candidates for so many Leases, each a process of its own."""
    contests = [f"lease-{number}" for number in range(pairs)]
    with pods.pods("lease", contests, LEASE_PACE_SECONDS):
        yield Stage(pods, contests, LEASE_SETTLE_SECONDS, seed, say)


@dataclass(frozen=True, slots=True)
class Verified:
    """What ``onewriter verify`` found in a log: an append of a former writer would be a violation."""

    entries: int
    violations: int

    @classmethod
    def of(cls, said: str) -> Verified:
        """Read its JSON."""
        logs = json.loads(said)["logs"]
        violations = sum(len(log["violations"]) + log["furtherViolations"] for log in logs)
        return cls(sum(log["entries"] for log in logs), violations)

    def __add__(self, other: Verified) -> Verified:
        return Verified(self.entries + other.entries, self.violations + other.violations)
