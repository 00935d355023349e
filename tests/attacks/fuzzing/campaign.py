"""The long attack of ``make soak``: hostile frames and requests against a broker, a sidecar and the webhook.

    python -m tests.attacks.fuzzing.campaign [--frames 250000] [--requests 50000] [--seed 1]

Two brokers run, each with a Valkey of its own; they ask for tokens, and topics are declared. A bystander publishes to
the first one, a message each 20 ms. The campaign has ``ROUNDS`` rounds. Each begins with a control run, in which the
attackers attack the second broker; then they attack the first one. The machine is as busy in both, so the ratio of the
bystander's latencies is what the attack itself costs. Attackers have a token and hold topics of their own; one of them
stages and publishes rows with the registration of its topic. Afterwards an administrator's token attacks the broker's
HTTP, and sidecar and webhook are attacked.

The run fails if a process was killed or restarted, wrote a traceback, or held more than ``MEMORY_RATIO_MAX`` of its
idle memory (measured after a few requests, which load code and fill pools), if the bystander lost a message or its p99
rose above ``LATENCY_RATIO_MAX`` of the control run, or if no hostile publish was in order.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.attacks.fuzzing import http, routes
from tests.attacks.guarded import ADMINISTRATOR, SECRET, token_of
from tests.integration.http_calls import OWN, Http, epoch_of
from tests.integration.raw import EXCLUSIVE, RawClient

from onewriter_testing.ports import free_ports
from onewriter_testing.processes import LocalBrokers, running_brokers

MEMORY_RATIO_MAX = 1.5
LATENCY_RATIO_MAX = 2.0

WIRE_SHARE = 3
"""Attackers of the wire protocol; one more attacks HTTP, and one stages and publishes rows."""

STAGING_SHARE = 5
"""One of this number of requests stages, publishes or discards rows."""

PUBLISH_SECONDS = 0.5
"""How long the attacker that publishes waits for an answer: the store must have it before."""

BESIDE_SHARE = 5
"""Sidecar and webhook get this part of the requests each, and so does the broker from its administrator."""

ROUNDS = 10
"""Control run and attack alternate: other work on the machine must not meet one of them alone."""

CONTROL_SHARE = 5
"""A control run sends this part of what the attack sends: enough latencies for a p99."""

WARM_UP_SHARE = 50
"""This part of the requests is sent before the idle memory is measured."""

MANIFESTS = "---".join(
    f"""
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {{name: {topic}}}
spec: {{access: {{consumers: {{subjects: [{subject}]}}}}}}
---
apiVersion: onewriter.dev/v1alpha1
kind: ProducerClaim
metadata: {{name: {topic}}}
spec: {{topicRef: {{name: {topic}}}, subject: {{tokenSubject: {subject}}}}}
"""
    for topic, subject in (("bystander", "bystander"), (http.HELD_TOPIC, "fuzz-holder"))
)

PAUSE_SECONDS = 0.02
SAMPLE_SECONDS = 0.5
DEFECTS = ("Traceback", "http.defect", "connection.failed")


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is sent, and the seed that it is made from."""

    frames: int
    requests: int
    seed: int

    def share(self, part: int, seed: int | None = None) -> Amount:
        """A part of it, from another seed if one is given."""
        seed = self.seed if seed is None else seed
        return Amount(self.frames // part, self.requests // part, seed)


@dataclass(slots=True)
class Writer:
    """Holds a topic and publishes to it until it is stopped; measures each receipt."""

    broker: LocalBrokers
    subject: str
    topic: str
    latencies_seconds: list[float] = field(default_factory=list)
    failure: str = ""
    registration: str = ""
    epoch: int = 0
    _holds: threading.Event = field(default_factory=threading.Event)
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        try:
            with RawClient(self.broker.address(), token=token_of(self.subject)) as client:
                producer = client.producer(self.topic, EXCLUSIVE)
                self.registration, self.epoch = producer.registration, epoch_of(producer)
                self._holds.set()
                while not self._over.wait(PAUSE_SECONDS):
                    before = time.perf_counter()
                    producer.publish(b"still the writer")
                    self.latencies_seconds.append(time.perf_counter() - before)
        except Exception as error:  # noqa: BLE001 - reported at the end of the run
            self.failure = f"{type(error).__name__}: {error}"
        self._holds.set()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Inside, it holds the topic."""
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            self._holds.wait()
            yield
        finally:
            self._over.set()
            thread.join()


@dataclass(slots=True)
class Measured:
    """The runs of one kind: control, or attack."""

    latencies_seconds: list[float] = field(default_factory=list)
    sent: int = 0
    failures: list[str] = field(default_factory=list)
    receipts_of_holders: int = 0

    def add(self, other_client: Writer, holder: Writer, sent: int) -> None:
        self.latencies_seconds += other_client.latencies_seconds
        self.sent += sent
        self.receipts_of_holders += len(holder.latencies_seconds)
        named = {"bystander": other_client, "holder of the attackers' topic": holder}
        self.failures += [f"{name}: {each.failure}" for name, each in named.items() if each.failure]

    def p99_ms(self) -> float:
        ordered = sorted(self.latencies_seconds)
        return 1000 * ordered[int(0.99 * (len(ordered) - 1))] if ordered else float("inf")


@dataclass(slots=True)
class Victim:
    """A process that is attacked: whether it lives, what it wrote, and what memory it held."""

    name: str
    pid: int
    log: Path
    idle_bytes: int = 0
    peak_bytes: int = 0

    def __post_init__(self) -> None:
        self.rest()

    def rest(self) -> None:
        """Note its memory as its idle one."""
        self.idle_bytes = self.peak_bytes = self.resident_bytes()

    def resident_bytes(self) -> int:
        with contextlib.suppress(OSError):
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE")
        return 0

    def sample(self) -> None:
        self.peak_bytes = max(self.peak_bytes, self.resident_bytes())

    def complaints(self) -> Iterator[str]:
        if not self.resident_bytes():
            yield f"{self.name}: process {self.pid} has ended"
        text = self.log.read_text(errors="replace")
        for defect in DEFECTS:
            if defect in text:
                at = text.index(defect)
                yield f"{self.name}: {defect} in its log:\n{text[max(at - 300, 0) : at + 1500]}"
        if self.peak_bytes > MEMORY_RATIO_MAX * self.idle_bytes:
            ratio = self.peak_bytes / self.idle_bytes
            yield f"{self.name}: {ratio:.2f} times its idle memory, at most {MEMORY_RATIO_MAX} is allowed"


def attack(commands: Sequence[Sequence[str]], victims: Sequence[Victim]) -> int:
    """Run the attackers side by side to their end; how many pieces they sent."""
    program = (sys.executable, "-m", "tests.attacks.fuzzing.attackers")
    running = [
        subprocess.Popen((*program, *command), stdout=subprocess.PIPE, text=True)
        for command in commands
    ]
    while any(process.poll() is None for process in running):
        for victim in victims:
            victim.sample()
        time.sleep(SAMPLE_SECONDS)
    return sum(json.loads(process.communicate()[0])["pieces"] for process in running)


def attackers_of(
    broker: LocalBrokers, holder: Writer, amount: Amount, folder: Path
) -> list[tuple[str, ...]]:
    """The attackers of one broker: of the wire protocol, of all of HTTP, of staging alone."""
    host, port = broker.address()
    http_port = broker.http_url.rpartition(":")[2]
    seed, unauthorized = amount.seed, ("--token", token_of("fuzzer"))
    staging = amount.requests // STAGING_SHARE
    shown = (
        *("--token", token_of(holder.subject), "--registration", holder.registration),
        *("--epoch", str(holder.epoch)),
        *("--answer-seconds", str(PUBLISH_SECONDS)),
    )
    return [
        *(
            (
                *("wire", host, str(port), str(seed + number)),
                *(str(amount.frames // WIRE_SHARE), *unauthorized),
            )
            for number in range(WIRE_SHARE)
        ),
        (
            *("http", host, http_port, str(seed), str(amount.requests - staging)),
            *("--routes", str(folder / "broker.json"), *unauthorized),
        ),
        (
            *("http", host, http_port, str(seed), str(staging)),
            *("--routes", str(folder / "staging.json"), *shown),
        ),
    ]


@contextlib.contextmanager
def process(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as output:
        started = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield started
    finally:
        started.terminate()
        started.wait(30)


def measured(
    bystanders: LocalBrokers,
    attacked: LocalBrokers,
    amount: Amount,
    folder: Path,
    victims: Sequence[Victim],
) -> tuple[Writer, Writer, int]:
    """Attack one broker while a bystander publishes to one; the bystander, the holder of the attackers' topic."""
    other_client = Writer(bystanders, "bystander", "bystander")
    holder = Writer(attacked, "fuzz-holder", http.HELD_TOPIC)
    with other_client.running(), holder.running():
        sent = attack(attackers_of(attacked, holder, amount, folder), victims)
    return other_client, holder, sent


def campaign(amount: Amount) -> list[str]:
    """The whole campaign; its complaints."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onewriter-fuzz-")))
        for name, listed in routes.NAMED.items():
            (folder / f"{name}.json").write_text(json.dumps(listed()))
        (folder / "secret").write_text(SECRET)
        (folder / "token").write_text(token_of("sidecar"))
        settings: dict[str, object] = {
            "authentication_required": True,
            "token_secret_file": str(folder / "secret"),
            "admin_subjects": ADMINISTRATOR,
        }
        first, second = (
            stack.enter_context(running_brokers(manifests=MANIFESTS, settings=settings))
            for _ in range(2)
        )
        sidecar_port, webhook_port = free_ports(1), free_ports(1)
        sidecar = stack.enter_context(
            process(
                (
                    *(str(Path(sys.executable).with_name("onewriter")), "sidecar"),
                    *("--topic", "sidecar", "--service-url", first.service_url),
                    *("--port", str(sidecar_port), "--token-file", str(folder / "token")),
                ),
                folder / "sidecar.log",
            )
        )
        webhook = stack.enter_context(
            process(
                (
                    *(sys.executable, "-m", "tests.attacks.fuzzing.webhook"),
                    *(str(folder), str(webhook_port)),
                ),
                folder / "webhook.log",
            )
        )
        victims = [
            Victim("broker", first.pid(), first.directory / "brokers.log"),
            Victim("sidecar", sidecar.pid, folder / "sidecar.log"),
            Victim("webhook", webhook.pid, folder / "webhook.log"),
        ]
        for victim, port in zip(victims[1:], (sidecar_port, webhook_port), strict=True):
            _wait_listening(port, victim)
        targets: list[tuple[str, int, tuple[str, ...]]] = [
            ("sidecar", sidecar_port, ()),
            ("webhook", webhook_port, ("--tls",)),
            ("broker", http_port_of(first), ("--token", token_of(ADMINISTRATOR))),
        ]
        warm_up = amount.share(WARM_UP_SHARE, amount.seed + ROUNDS)
        measured(first, first, warm_up, folder, ())
        attack(beside(targets, warm_up, folder), ())
        for victim in victims:
            victim.rest()
        pid, before = first.pid(), http_messages(first, http.HELD_TOPIC)
        control, attacked = Measured(), Measured()
        for number in range(ROUNDS):
            part = amount.share(ROUNDS, amount.seed + number)
            control.add(*measured(first, second, part.share(CONTROL_SHARE), folder, ()))
            attacked.add(*measured(first, first, part, folder, victims))
            print(
                f"round {number + 1} of {ROUNDS}: p99 so far {_p99s(control, attacked)}", flush=True
            )
        report("control", control)
        report("attack", attacked)
        staged = http_messages(first, http.HELD_TOPIC) - before - attacked.receipts_of_holders
        print(f"staged and published: {staged} messages")
        sent = attack(beside(targets, amount.share(BESIDE_SHARE), folder), victims)
        print(f"sidecar, webhook, and the broker as its administrator: {sent} requests")
        complaints = [each for victim in victims for each in victim.complaints()]
        if first.pid() != pid:
            complaints.append(f"broker: process {pid} was replaced by {first.pid()}")
        complaints += [f"control: {each}" for each in control.failures]
        complaints += [f"attack: {each}" for each in attacked.failures]
        if not staged:
            complaints.append("staging: none of the publishes was in order")
        ratio = attacked.p99_ms() / control.p99_ms()
        print(f"bystander's p99: {ratio:.2f} times the control run")
        if ratio > LATENCY_RATIO_MAX:
            complaints.append(
                f"bystander: p99 {ratio:.2f} times the control run, at most {LATENCY_RATIO_MAX}"
            )
        for victim in victims:
            times = victim.peak_bytes / victim.idle_bytes
            print(f"{victim.name}: memory at most {times:.2f} times its idle one")
        return complaints


def beside(
    targets: Sequence[tuple[str, int, tuple[str, ...]]], amount: Amount, folder: Path
) -> list[tuple[str, ...]]:
    """The attackers of sidecar, webhook and the broker's administration."""
    return [
        (
            *("http", "127.0.0.1", str(port), str(amount.seed), str(amount.requests)),
            *("--routes", str(folder / f"{kind}.json"), *options),
        )
        for kind, port, options in targets
    ]


def http_port_of(broker: LocalBrokers) -> int:
    return int(broker.http_url.rpartition(":")[2])


def http_messages(broker: LocalBrokers, topic: str) -> int:
    """How many messages a topic holds."""
    administrator = Http(broker.http_url, token_of(ADMINISTRATOR))
    _, answer = administrator("GET", f"{OWN}/{topic}/segments")
    return sum(each["messages"] for each in answer["segments"])


def _p99s(control: Measured, attacked: Measured) -> str:
    return f"{control.p99_ms():.1f} ms (control), {attacked.p99_ms():.1f} ms (attack)"


def _wait_listening(port: int, victim: Victim, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if time.monotonic() > deadline:
            log = victim.log.read_text(errors="replace")[-2000:]
            raise TimeoutError(f"{victim.name} does not listen on port {port}:\n{log}")
        time.sleep(0.1)


def report(name: str, runs: Measured) -> None:
    number = len(runs.latencies_seconds)
    print(
        f"{name}: {runs.sent} frames and requests; bystander: {number} receipts, p99 {runs.p99_ms():.1f} ms"
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--frames", type=int, default=250_000)
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    complaints = campaign(Amount(options.frames, options.requests, options.seed))
    for complaint in complaints:
        print(f"FAILED {complaint}")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
