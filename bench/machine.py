"""What every measurement needs to know about the machine and the processes on it.

Here: the cache for downloaded tools, free ports, the CPU time and memory of a process tree, and
the description that stands beside every table. Not here: anything that speaks Pulsar's protocol.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

SAMPLE_SECONDS = 2.0
"""For so long a run looks at what others do before it begins."""

_CLOCK_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PROCESS_ENDED = (FileNotFoundError, ProcessLookupError)


class LabUnavailable(RuntimeError):
    """A tool for comparison cannot run here; the message says what is missing, in one line."""


def cache_directory(name: str) -> Path:
    """A directory for downloads that outlives the checkout; made if it is not there."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    directory = Path(base) / "onewriter" / name
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@contextlib.contextmanager
def exclusive_use(directory: Path) -> Iterator[None]:
    """Hold the directory's lock, so that two runs never fill one cache at the same time."""
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def last_lines(text: str) -> str:
    """The end of a tool's output, for an error message."""
    return "\n".join(text.strip().splitlines()[-15:])


def run_tool(
    command: list[str], *, timeout_seconds: float, environment: dict[str, str] | None = None
) -> None:
    """Run a build tool to its end; raises LabUnavailable with the end of its output."""
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=timeout_seconds,
            env={**os.environ, **(environment or {})},
        )
    except subprocess.TimeoutExpired as error:
        raise LabUnavailable(f"{command[0]} was not done after {timeout_seconds:.0f} s") from error
    if done.returncode != 0:
        raise LabUnavailable(
            f"{command[0]} failed (exit code {done.returncode}):\n{last_lines(done.stdout)}"
        )


def stop_process(process: subprocess.Popen[bytes], grace_seconds: float) -> None:
    """Ask the process to end, insist after the grace time, and wait until it is gone."""
    process.terminate()
    try:
        process.wait(grace_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """What a set of process trees used: CPU time so far, memory now."""

    cpu_seconds: float
    resident_bytes: int

    def since(self, earlier: ProcessUsage) -> ProcessUsage:
        """The CPU time spent after ``earlier``; memory as it is now."""
        return ProcessUsage(self.cpu_seconds - earlier.cpu_seconds, self.resident_bytes)


def _stat_fields(pid: int) -> list[str]:
    # The command's name, in parentheses, may itself hold spaces and parentheses.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _children_by_parent() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(*_PROCESS_ENDED):
                pid = int(entry.name)
                children.setdefault(int(_stat_fields(pid)[1]), []).append(pid)
    return children


def process_usage(pids: Iterable[int]) -> ProcessUsage:
    """Usage of these processes and all their descendants, those already reaped included.

    Resident memory counts pages shared between processes once for each of them.
    """
    children = _children_by_parent()
    waiting, seen = list(pids), set[int]()
    ticks = pages = 0
    while waiting:
        pid = waiting.pop()
        if pid in seen:
            continue
        seen.add(pid)
        waiting.extend(children.get(pid, ()))
        with contextlib.suppress(*_PROCESS_ENDED):
            fields = _stat_fields(pid)
            # utime, stime, and those of reaped children; then rss.
            ticks += sum(int(field) for field in fields[11:15])
            pages += int(fields[21])
    return ProcessUsage(ticks / _CLOCK_TICKS_PER_SECOND, pages * _PAGE_BYTES)


def resident_bytes_of(pid: int, mark: str) -> list[int]:
    """The resident memory of each descendant of a process whose command line holds ``mark``."""
    children = _children_by_parent()
    waiting, found = list(children.get(pid, ())), []
    while waiting:
        child = waiting.pop()
        waiting.extend(children.get(child, ()))
        with contextlib.suppress(*_PROCESS_ENDED):
            words = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
            if mark in words:
                found.append(int(_stat_fields(child)[21]) * _PAGE_BYTES)
    return found


class OtherWork:
    """The processor time that went to others since this was made: how far to trust a figure.

    Others are all processes but this one and its descendants, and the hypervisor.
    """

    def __init__(self) -> None:
        self._began = self._now()

    def share(self) -> float:
        """The part of all processors' time that others used, from 0 to 1."""
        elapsed, busy, own = (
            now - then for now, then in zip(self._now(), self._began, strict=True)
        )
        cores = len(os.sched_getaffinity(0))
        share = (busy - own) / max(elapsed * cores, 1 / _CLOCK_TICKS_PER_SECOND)
        return min(1.0, max(0.0, share))  # the clocks differ by a tick

    @staticmethod
    def _now() -> tuple[float, float, float]:
        line = Path("/proc/stat").read_text().partition("\n")[0]
        # Time of processes: user, nice, system, and the eighth field, which other virtual machines took. Interrupts do not count.
        ticks = [int(field) for field in line.split()[1:]]
        busy = (sum(ticks[:3]) + ticks[7]) / _CLOCK_TICKS_PER_SECOND
        return time.monotonic(), busy, process_usage([os.getpid()]).cpu_seconds


def others_share_now(seconds: float = SAMPLE_SECONDS) -> float:
    """The part of all processors' time that others use, while this process waits and looks."""
    others = OtherWork()
    time.sleep(seconds)
    return others.share()


@dataclass(frozen=True, slots=True)
class Machine:
    """The line that stands beside every table of figures."""

    cores: int
    memory_gib: float
    processor: str
    kernel: str
    python: str
    file_system: str
    sync_write_ms_p50: float
    sync_write_ms_p99: float
    """4 KiB appended and synced to disk, in the directory where the brokers keep their data."""
    load_average_1_minute: float
    """Of the whole machine when it was described: says how disturbed the figures may be."""

    def __str__(self) -> str:
        return (
            f"{self.cores} cores ({self.processor}), {self.memory_gib:.0f} GiB, {self.kernel}, "
            f"Python {self.python}, {self.file_system} "
            f"(4 KiB write + fdatasync p50 {self.sync_write_ms_p50:.2f} ms, "
            f"p99 {self.sync_write_ms_p99:.2f} ms), load {self.load_average_1_minute:.1f}"
        )

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def describe_machine() -> Machine:
    """Describe this machine, and the file system of its temporary files, where the measured servers store data."""
    directory = Path(tempfile.gettempdir())
    p50, p99 = _sync_write_milliseconds(directory)
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        memory_gib=os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES / 2**30,
        processor=_processor_name(),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        file_system=_file_system_type(directory),
        sync_write_ms_p50=p50,
        sync_write_ms_p99=p99,
        load_average_1_minute=os.getloadavg()[0],
    )


def _processor_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system_type(directory: Path) -> str:
    """The type of the deepest mount that holds the directory."""
    target = directory.resolve()
    best, kind = -1, "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, mounted_kind, *_ = line.split()
        point = Path(mount)
        if target.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), mounted_kind
    return kind


def _sync_write_milliseconds(directory: Path) -> tuple[float, float]:
    block = bytes(4096)
    times = []
    with tempfile.NamedTemporaryFile(dir=directory, buffering=0) as file:
        for _ in range(200):
            started = time.perf_counter()
            file.write(block)
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - started) * 1000)
    cuts = statistics.quantiles(times, n=100)
    return cuts[49], cuts[98]
