"""Real brokers for tests: processes on free ports, with their own folder, controlled by signals.

This module starts, stops, kills, freezes and asks brokers as an administrator at a terminal would, for this
project's tests and, through ``onewriter.testing``, for those of its users. Tests use stock clients, and pass
the URL of a store that is not the embedded one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from onewriter_broker.ownership.placement import rendezvous
from onewriter_broker.settings import Settings
from onewriter_core.errors import Unavailable
from onewriter_core.ids import TopicName, bucket_of
from onewriter_core.wire.client import ClientConnection
from onewriter_core.wire.commands import Command
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.ports import free_ports

START_SECONDS_MAX = 180.0
"""Time until every broker answers a CONNECT."""

STOP_SECONDS_MAX = 90.0
"""Time for a clean stop; then SIGKILL."""

POLL_SECONDS = 0.02

NOT_OWNED, REFUSED = "nobody", "refused"
"""Used in place of an owner if a look-up names none."""

HELD = "buckets.held"
"""The event of a broker that has acquired the buckets that are its."""

LOG_BYTES_SHOWN = 16 * 1024
"""Bytes of the log that are shown after a failure."""

RUNNING: list[LocalBrokers] = []
"""The running brokers, so that a test framework can show their logs when a test fails."""


class LocalBrokers:
    """Brokers of one data directory, numbered from 0; each is a process that can get signals.

    ``supervised``: they run under ``onewriter up``, with an embedded Valkey unless ``redis_url`` names a
    store; a broker that ends is restarted. Otherwise each one runs without a supervisor, which needs a
    ``redis_url``. ``manifests`` is YAML text. ``settings`` are those of ``onewriter_broker.settings``, by
    name. ``arguments`` are passed to ``onewriter up`` unchanged.
    """

    def __init__(
        self,
        directory: Path,
        *,
        brokers: int = 1,
        manifests: str = "",
        redis_url: str = "",
        supervised: bool = True,
        settings: Mapping[str, object] | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        if not supervised and not redis_url:
            raise ValueError("brokers without a supervisor need a redis_url")
        self.directory = directory
        self.data_directory = directory / "data"
        self.names = [f"broker-{number}" for number in range(brokers)]
        self._port = free_ports(2 * brokers)
        self._http_port = self._port + brokers
        self._manifests = manifests
        self._redis_url = redis_url
        self._supervised = supervised
        self._settings = dict(settings or {})
        self._arguments = list(arguments)
        self._log_path = directory / "brokers.log"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._held_before = 0

    # ------------------------------------------------------------ where they are

    @property
    def service_urls(self) -> list[str]:
        """The URL of each broker for Pulsar's binary protocol."""
        return [f"pulsar://127.0.0.1:{self._port + n}" for n in range(len(self.names))]

    @property
    def service_url(self) -> str:
        """One URL that lists all brokers, in the format of Pulsar's clients."""
        hosts = [url.removeprefix("pulsar://") for url in self.service_urls]
        return "pulsar://" + ",".join(hosts)

    @property
    def http_urls(self) -> list[str]:
        """The HTTP URL of each broker."""
        return [f"http://127.0.0.1:{self._http_port + n}" for n in range(len(self.names))]

    @property
    def http_url(self) -> str:
        """The HTTP URL of the first broker."""
        return self.http_urls[0]

    def address(self, number: int = 0) -> tuple[str, int]:
        """Host and port of a broker's binary protocol."""
        return "127.0.0.1", self._port + number

    @property
    def buckets(self) -> int:
        """The number of buckets that these brokers share."""
        return int(str(self._settings.get("buckets", Settings.model_fields["buckets"].default)))

    def target_of(self, topic: str) -> int:
        """The broker to which placement assigns the topic when all brokers are alive."""
        name = rendezvous(bucket_of(TopicName.parse(topic).base, self.buckets), self.names)
        return self.names.index(name)

    def owner_of(self, topic: str, *, through: int = 0) -> int:
        """The broker that a look-up through that broker returns. Raises Unavailable if it returns none."""
        url = next(iter(self._look_up(through, [topic])), "")
        if url in {"", NOT_OWNED, REFUSED}:
            raise Unavailable(f"no broker serves {topic}")
        return self.service_urls.index(url)

    # ------------------------------------------------------------ their life

    def start(self, *, wait: bool = True) -> None:
        """Start all brokers and, unless ``wait`` is False, wait until each one answers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._held_before = len(self.events(HELD))
        if self._supervised:
            self._spawn(self._up_command())
        else:
            for number in range(len(self.names)):
                self._spawn(self._bare_command(number))
        if self not in RUNNING:
            RUNNING.append(self)
        if wait:
            self.wait_ready()

    def restart(self, number: int, *, wait: bool = True) -> None:
        """Start a killed broker without a supervisor again."""
        command = self._bare_command(number)
        self._held_before = len(self.events(HELD))
        self._processes[number] = self._popen(command)
        if wait:
            self.wait_ready(number)

    def wait_ready(self, *numbers: int) -> None:
        """Wait until these brokers, or all, listen and every bucket has an owner.

        Raises Unavailable with the log.
        """
        deadline = time.monotonic() + START_SECONDS_MAX
        topics = self._topic_of_each_bucket()
        for number in numbers or range(len(self.names)):
            while True:
                with contextlib.suppress(OSError):
                    answers = self._look_up(number, topics.values())
                    if answers:
                        is_ready = NOT_OWNED not in answers
                    else:  # it requires credentials, so the log since its start is the only sign
                        is_ready = len(self.events(HELD)) > self._held_before
                    if is_ready:
                        break
                ended = [p.returncode for p in self._processes if p.poll() is not None]
                if ended or time.monotonic() > deadline:
                    raise Unavailable(f"{self.names[number]} does not answer:\n{self.log_end()}")
                time.sleep(POLL_SECONDS)

    def _topic_of_each_bucket(self) -> dict[int, str]:
        """For each bucket, a topic that belongs to it."""
        buckets = self.buckets
        topics: dict[int, str] = {}
        names = (f"t-{number}" for number in itertools.count())
        while len(topics) < buckets:
            name = next(names)
            topics.setdefault(bucket_of(TopicName.parse(name), buckets), name)
        return topics

    def stop(self) -> int:
        """Stop cleanly, as Ctrl-C does; returns the exit code (of the last process with one other than 0)."""
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGINT)
        code = self.wait_ended()
        if self in RUNNING:
            RUNNING.remove(self)
        return code

    def wait_ended(self) -> int:
        """Wait until all processes have ended, and kill those that do not end; returns the exit code."""
        code = 0
        for process in self._processes:
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            code = process.returncode or code
        self._processes.clear()
        return code

    def pid(self, number: int = 0) -> int:
        """The present process id of a broker."""
        if not self._supervised:
            return self._processes[number].pid
        started = [
            int(str(event["process_id"]))
            for event in self.events("child.started")
            if event["child"] == self.names[number]
        ]
        return started[-1]

    def kill(self, number: int = 0) -> int:
        """Send SIGKILL to a broker; returns its process id."""
        return self._signal(number, signal.SIGKILL)

    def freeze(self, number: int = 0) -> int:
        """Send SIGSTOP to a broker: it does not answer, and its sockets stay open."""
        return self._signal(number, signal.SIGSTOP)

    def thaw(self, process_id: int) -> None:
        """Send SIGCONT to a frozen process, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGCONT)

    def resident_bytes(self, number: int = 0) -> int:
        """The memory that a broker's process holds (Linux)."""
        pages = int(Path(f"/proc/{self.pid(number)}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    # ------------------------------------------------------------ their story

    def log(self) -> str:
        """Everything that the brokers and their supervisor logged since the first start."""
        return self._log_path.read_text(errors="replace") if self._log_path.exists() else ""

    def log_end(self) -> str:
        """The last part of the log."""
        return self.log()[-LOG_BYTES_SHOWN:]

    def events(self, name: str) -> list[dict[str, object]]:
        """The log's lines about one kind of event, in order."""
        found = []
        for line in self.log().splitlines():
            if f'"{name}"' in line:
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if event.get("event") == name:
                        found.append(event)
        return found

    def wait_for_event(
        self,
        name: str,
        matches: Callable[[dict[str, object]], bool] = lambda _event: True,
        *,
        count: int = 1,
        seconds: float = START_SECONDS_MAX,
    ) -> dict[str, object]:
        """The line number ``count`` of this kind, once it exists. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while True:
            found = [event for event in self.events(name) if matches(event)]
            if len(found) >= count:
                return found[count - 1]
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {name} in {seconds} s:\n{self.log_end()}")
            time.sleep(POLL_SECONDS)

    # ------------------------------------------------------------ inside

    def _up_command(self) -> list[str]:
        options = [
            *("--port", str(self._port), "--http-port", str(self._http_port)),
            *("--data-dir", str(self.data_directory), "--brokers", str(len(self.names))),
        ]
        if self._redis_url:
            options += ["--redis-url", self._redis_url]
        if self._manifests:
            options += ["--manifests", str(self._written_manifests())]
        program = "from onewriter_broker.cli import up; up()"
        return [sys.executable, "-c", program, *options, *self._arguments]

    def _bare_command(self, number: int) -> list[str]:
        chosen: dict[str, object] = {
            "name": self.names[number],
            "port": self._port + number,
            "http_port": self._http_port + number,
            "data_dir": self.data_directory,
            "redis_url": self._redis_url,
            "manifests": (self._written_manifests(),) if self._manifests else (),
        }
        settings = Settings.model_validate(chosen | self._settings)
        path = self.directory / f"{self.names[number]}.json"
        # Defaults are left to the broker: one of an earlier release does not know every setting.
        path.write_text(settings.model_dump_json(exclude_defaults=True))
        return [sys.executable, "-m", "onewriter_broker.process", str(path)]

    def _written_manifests(self) -> Path:
        path = self.directory / "manifests.yaml"
        path.write_text(self._manifests)
        return path

    def _spawn(self, command: list[str]) -> None:
        self._processes.append(self._popen(command))

    def _popen(self, command: list[str]) -> subprocess.Popen[bytes]:
        chosen = {f"ONEWRITER_{name.upper()}": str(v) for name, v in self._settings.items()}
        with self._log_path.open("ab") as log:
            return subprocess.Popen(  # noqa: S603 - our own program
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | chosen
            )

    def _signal(self, number: int, which: signal.Signals) -> int:
        process_id = self.pid(number)
        os.kill(process_id, which)
        if which is signal.SIGKILL and not self._supervised:
            self._processes[number].wait()
        return process_id

    def _look_up(self, number: int, topics: Collection[str]) -> list[str]:
        """The owners of topics in their order; empty if the broker requires credentials.

        NOT_OWNED means no owner, REFUSED a topic that must not exist. Raises OSError.
        """
        with socket.create_connection(self.address(number), timeout=STOP_SECONDS_MAX) as link:
            wire = ClientConnection()
            link.sendall(wire.connect("onewriter-testing"))
            commands = _commands(link, wire)
            if not isinstance(next(commands, None), pb.CommandConnected):
                return []
            for request_id, topic in enumerate(topics):
                name = str(TopicName.parse(topic))
                link.sendall(wire.encode(pb.CommandLookup(topic=name, request_id=request_id)))
            found: dict[int, str] = {}
            for command in commands:
                if isinstance(command, pb.CommandLookupResponse):
                    is_owned = command.error != pb.METADATA_ERROR
                    owner = self._plain_url(command) or REFUSED
                    found[command.request_id] = owner if is_owned else NOT_OWNED
                if len(found) == len(topics):
                    return [found[request_id] for request_id in sorted(found)]
        raise ConnectionError("the broker closed the connection")

    def _plain_url(self, answer: pb.CommandLookupResponse) -> str:
        """The plain address of the broker in a look-up's result; with ``tls_only`` the result contains
        another address.
        """
        if answer.broker_service_url or not answer.broker_service_url_tls:
            return answer.broker_service_url
        host, _, port = answer.broker_service_url_tls.partition("://")[2].rpartition(":")
        number = int(port) - int(str(self._settings["tls_port"]))
        return f"pulsar://{host}:{self._port + number}"


def _commands(link: socket.socket, wire: ClientConnection) -> Iterator[Command]:
    while data := link.recv(65536):
        for command, _ in wire.feed(data):
            yield command


@contextlib.contextmanager
def running_brokers(
    *,
    brokers: int = 1,
    manifests: str = "",
    redis_url: str = "",
    supervised: bool = True,
    settings: Mapping[str, object] | None = None,
    arguments: Sequence[str] = (),
) -> Iterator[LocalBrokers]:
    """Started brokers in a temporary folder, which are stopped at the end; see LocalBrokers."""
    with tempfile.TemporaryDirectory(prefix="onewriter-") as folder:
        local = LocalBrokers(
            Path(folder),
            brokers=brokers,
            manifests=manifests,
            redis_url=redis_url,
            supervised=supervised,
            settings=settings,
            arguments=arguments,
        )
        try:
            local.start()
            yield local
        except BaseException as error:
            error.add_note(f"the brokers' log ends with:\n{local.log_end()}")
            raise
        finally:
            local.stop()
