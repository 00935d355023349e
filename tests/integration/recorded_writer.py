"""Writers as processes of their own, which can be killed and frozen, and what they recorded before.

Each writer appends a line to its file for every grant and for every receipt, as soon as it has it. The records of
a killed writer stay. A value names its writer, the epoch under which it was sent, and its number.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

from tests.integration.continuous_writer import ContinuousWriter
from tests.integration.forked import fork
from tests.integration.raw import EXCLUSIVE, FENCING, RawClient, RawProducer, eventually

from onewriter_core.errors import Unavailable
from onewriter_core.ids import Position

POLL_SECONDS = 0.02
ANSWER_SECONDS_MAX = 10.0
"""Time limit for a broker's answer. The broker may be frozen; another one may serve the topic by then."""

STOP_SECONDS_MAX = 120.0
SETTLED_SECONDS_MAX = 240.0
"""Time limit for receipts while parts of the cluster fail and recover."""

PUBLISHING = "publishing"
"""A file in the folder of the writers: they send new values while it exists."""

STOPPING = "stopping"
"""A file in the folder of the writers: they end when it exists."""


@dataclass(frozen=True, slots=True)
class Grant:
    """An epoch of a writer, and the times at which it was asked for and received."""

    writer: str
    epoch: int
    asked: float
    granted: float


@dataclass
class Records:
    """What the writers of one topic recorded: ``acked`` has the position of each acknowledged value."""

    grants: list[Grant] = field(default_factory=list)
    acked: dict[bytes, Position] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


class RecordedWriter(ContinuousWriter):
    """Runs in the writer's process. With ``fences`` it takes the topic over once, and ends when it is fenced itself.

    ``ports``: the brokers' ports for this writer, in the order in which it asks them, by the port that they name.
    """

    window = 4
    pause_seconds = 0.03

    def __init__(
        self, topic: str, name: str, folder: Path, ports: Mapping[int, int], *, fences: bool
    ) -> None:
        super().__init__(topic, mode=FENCING if fences else EXCLUSIVE)
        self.name = name
        self._folder = folder
        self._ports = ports
        self._to_ask: Iterator[int] = cycle(ports.values())
        self._fences = fences
        self._asked = 0.0
        self._record = os.open(
            folder / f"{topic}.{name}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644
        )

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def note(self, **fields: object) -> None:
        """Append a line to the record."""
        os.write(self._record, json.dumps(fields).encode() + b"\n")

    def _connect(self, address: tuple[str, int]) -> RawClient:
        return RawClient(address, seconds_max=ANSWER_SECONDS_MAX)

    def _address(self) -> tuple[str, int]:
        with self._connect(("127.0.0.1", next(self._to_ask))) as client:
            url = client.lookup(self.topic).broker_service_url
        if not url:
            raise Unavailable(f"no broker serves {self.topic}")
        self._asked = time.monotonic()
        return "127.0.0.1", self._ports[int(url.rpartition(":")[2])]

    def _granted(self, epoch: int) -> None:
        super()._granted(epoch)
        self.note(epoch=epoch, asked=self._asked, granted=time.monotonic())

    def _fenced(self) -> None:
        if self._fences and self.epochs:
            self._is_over.set()

    def _may_publish(self) -> bool:
        return (self._folder / PUBLISHING).exists()

    def _value(self, producer: RawProducer, number: int) -> bytes:
        return f"{self.name}/{producer.epoch}/{number}".encode()

    def _acknowledged(self, value: bytes, position: Position) -> None:
        super()._acknowledged(value, position)
        self.note(value=value.decode(), ledger=position.ledger, entry=position.entry)


def write(topic: str, name: str, folder: Path, ports: Mapping[int, int], fences: bool) -> int:
    """Write to the topic until the writers' folder has the file STOPPING, or the writer is done."""
    writer = RecordedWriter(topic, name, folder, ports, fences=fences)
    try:
        with writer:
            while not (folder / STOPPING).exists() and not writer.is_over:
                time.sleep(POLL_SECONDS)
    except BaseException:  # noqa: BLE001 - the test reports it
        writer.note(failure=traceback.format_exc())
        return 1
    return 0


class WriterProcess:
    """One writer."""

    def __init__(
        self, topic: str, name: str, folder: Path, ports: Mapping[int, int], *, fences: bool = False
    ) -> None:
        self.topic = topic
        self.name = name
        self._path = folder / f"{topic}.{name}"
        arguments = (topic, name, folder, dict(ports), fences)
        self._process = fork(write, *arguments, log=folder / "writers.log")

    @property
    def receipts(self) -> int:
        """The number of receipts that it has recorded."""
        return self._path.read_bytes().count(b'"value"') if self._path.exists() else 0

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def has_acknowledged(self, count: int, seconds: float = SETTLED_SECONDS_MAX) -> None:
        """Wait until it has recorded this number of receipts since its start. Raises TimeoutError."""
        eventually(
            lambda: self.receipts >= count or self.has_ended,
            seconds,
            what=f"{self.topic}: {self.name} has fewer than {count} receipts",
        )

    def records(self) -> Records:
        """What it has recorded so far."""
        records = Records()
        if not self._path.exists():
            return records
        for line in self._path.read_bytes().splitlines():
            try:
                fields = json.loads(line)
            except ValueError:  # it was killed while it wrote the line
                continue
            if "failure" in fields:
                records.failures.append(f"{self.name}: {fields['failure']}")
            elif "epoch" in fields:
                records.grants.append(
                    Grant(self.name, fields["epoch"], fields["asked"], fields["granted"])
                )
            else:
                records.acked[fields["value"].encode()] = Position(
                    fields["ledger"], fields["entry"]
                )
        return records

    def send_signal(self, which: signal.Signals) -> None:
        self._process.send_signal(which)

    def wait(self) -> None:
        """Wait until it has ended; kill it if it does not end."""
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise


def records_of(writers: Sequence[WriterProcess], topic: str) -> Records:
    """What all writers of a topic recorded."""
    together = Records()
    for writer in writers:
        if writer.topic == topic:
            records = writer.records()
            together.grants += records.grants
            together.acked |= records.acked
            together.failures += records.failures
    return together
