"""The pods of the store's cluster as processes on loopback, with the start script and the settings of real pods, and the
operator that forms and repairs the cluster.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import pytest
import redis
import redis.exceptions
import uvloop
from redis.backoff import NoBackoff
from redis.retry import Retry
from tests.integration.forked import fork
from tests.integration.forked_brokers import ForkedBrokers
from tests.integration.raw import eventually
from tests.servers import SERVER_PROGRAMS
from tests.tls_store import connections_ended
from tests.unit.kube.installation_configurations import configured

from onewriter_broker import process
from onewriter_broker.verbs.adopt import adopt as adopt_command
from onewriter_core.cluster_views import SLOTS, ClusterView, parse_view, slot_of
from onewriter_core.kubernetes.kinds import POD, Kind
from onewriter_operator.configuration import Configuration
from onewriter_operator.installation import names, valkey_configuration
from onewriter_operator.kube import Kube
from onewriter_operator.metrics import Metrics
from onewriter_operator.plan.store_shards import SPREAD_SECONDS, StorePlan, StoreState
from onewriter_operator.reconcile.store_formation import StoreClusterReconciler
from onewriter_operator.store_process import StoreProcess
from onewriter_testing.ports import free_ports

Json = dict[str, Any]

SHARDS: Final = 3
BUCKETS: Final = 64
ODD_PASSWORD: Final = 'it\'s "odd" \\n: ü $HOME'  # noqa: S105 - of these tests alone
PASSWORD: Final = "brokers"  # noqa: S105 - of these tests alone
SECONDS_MAX: Final = 240.0
POLL_SECONDS: Final = 0.1
DOMAIN: Final = ".store"
"""The end of the names that pods announce."""


def found_host(host: Any) -> Any:
    """The address for a host: each pod has ports of its own on 127.0.0.1."""
    return "127.0.0.1" if isinstance(host, str) and host.endswith(DOMAIN) else host


@contextmanager
def pod_names() -> Iterator[None]:
    """Let this process find the pods by their names."""
    asked = socket.getaddrinfo

    def named(host: Any, *rest: Any, **options: Any) -> Any:
        return asked(found_host(host), *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", named)
        yield


class PodLoop(uvloop.Loop):
    """A broker's event loop that finds the pods by their names."""

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, *rest: Any, **options: Any
    ) -> Any:
        return await super().create_connection(protocol_factory, found_host(host), *rest, **options)


def run_broker(arguments: list[str]) -> int:
    """Run a broker that finds the pods by their names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "onewriter_broker.process.uvloop.run", partial(uvloop.run, loop_factory=PodLoop)
        )
        return process.main(arguments)


def run_adopt(options: list[str]) -> None:
    """Run ``onewriter adopt`` with access to the pods; it ends this process."""
    with pod_names():
        adopt_command.main(options)


class PodBrokers(ForkedBrokers):
    """Brokers that connect to the pods of a World."""

    def _popen(self, command: list[str]) -> subprocess.Popen[bytes]:
        return fork(run_broker, [command[-1]], log=self._log_path)


def configuration_of(replicas: int, *, has_tls: bool = False) -> Configuration:
    """The values of an installation whose shards have this number of replicas."""
    tls = {"secretName": "store" if has_tls else ""}
    layout = {"shards": SHARDS, "replicas": replicas, "tls": tls}
    return configured({"store": layout, "valkey": {"image": "other"}})


class Pod:
    """One pod: a process on loopback whose address changes with each start. ``kind``: of server.

    ``has_tls``: whether its next start is with TLS, with the certificate in the directory ``certificates``.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        shard: int,
        node: str,
        number: int,
        *,
        kind: str = "valkey",
        has_tls: bool = False,
    ) -> None:
        self.has_tls, self._certificates = has_tls, directory / "certificates"
        self.name, self.shard, self.node, self._number = name, shard, node, number
        self.port, self.bus_port = free_ports(1), free_ports(1)
        self.data, self._home = directory / name / "data", directory / name
        for each in ("data", "state", "configuration", "programs"):
            (self._home / each).mkdir(parents=True)
        (self._home / "programs" / "valkey-server").symlink_to(SERVER_PROGRAMS[kind])
        self._passwords = directory / "passwords"
        self._starts = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._abandoned: list[subprocess.Popen[bytes]] = []

    @property
    def address(self) -> str:
        return f"127.77.{self._starts}.{10 + self._number}"

    def start(self, *, moves: bool = True) -> None:
        """Start with another address; without ``moves`` with the former one."""
        self._starts += moves
        document = valkey_configuration.config_map(configuration_of(1, has_tls=self.has_tls))
        assert document is not None
        for name, content in document["data"].items():
            text = content
            if name == "valkey.conf":
                for old, new in (
                    ("bind * -::*", f"bind {self.address} 127.0.0.1"),
                    ("port 16379", f"port {self.bus_port}"),
                    ("port 6379", f"port {self.port}"),
                    ("/run/valkey", str(self._home / "state")),
                    ("dir /data", f"dir {self.data}"),
                ):
                    assert old in text
                    text = text.replace(old, new)
                text = text.replace(valkey_configuration.TLS_DIRECTORY, str(self._certificates))
            (self._home / "configuration" / name).write_text(text)
        environment = {
            **os.environ,
            "PATH": f"{self._home / 'programs'}:{os.environ['PATH']}",
            "ONEWRITER_VALKEY_CONFIGURATION": str(self._home / "configuration"),
            "ONEWRITER_VALKEY_PASSWORDS": str(self._passwords),
            "ONEWRITER_VALKEY_CLUSTER_PASSWORDS": str(self._passwords / "cluster"),
            "ONEWRITER_VALKEY_LOOK_SECONDS": "2",
            "ONEWRITER_VALKEY_STATE": str(self._home / "state"),
            "ONEWRITER_VALKEY_DATA": str(self.data),
            "ONEWRITER_VALKEY_PORT": str(self.port),
            "ONEWRITER_VALKEY_ADDRESS": self.address,
            "ONEWRITER_VALKEY_HOST": f"{self.name}{DOMAIN}",
            "ONEWRITER_VALKEY_TLS": str(self._certificates) if self.has_tls else "",
        }
        self._environment = environment
        with (self._home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self._script("run"),
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _script(self, *words: str) -> list[str]:
        return ["sh", str(self._home / "configuration" / "valkey.sh"), *words]

    def log_text(self) -> str:
        """Return what the pod has logged since its first start."""
        return (self._home / "log").read_text(errors="replace")

    def is_ready(self) -> bool:
        """Return what the readiness probe of the pod finds."""
        done = subprocess.run(
            self._script("ready"), env=self._environment, capture_output=True, check=False
        )
        return done.returncode == 0

    def leave(self) -> None:
        """Do what the pod does before it is stopped."""
        subprocess.run(
            self._script("leave", "0"), env=self._environment, capture_output=True, check=True
        )

    def accepts(self, password: str) -> bool:
        """Return whether the operator can connect with this password."""
        with redis.Redis(
            port=self.port, username=names.STORE_OPERATOR, password=password
        ) as connection:
            try:
                return bool(connection.ping())
            except redis.exceptions.AuthenticationError:
                return False

    def kill(self) -> None:
        """End all processes of the pod at once, as the end of its container does."""
        process, self.process = self.process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def end(self) -> None:
        """End all processes that this pod ever had."""
        self.kill()
        for former in self._abandoned:
            os.killpg(former.pid, signal.SIGKILL)
            former.wait()

    def stop(self) -> None:
        """Send the signal with which Kubernetes stops the pod, and wait until it has ended."""
        former, self.process = self.process, None
        assert former is not None
        former.terminate()
        former.wait(SECONDS_MAX)

    def lose_volume(self) -> None:
        """Lose process and volume; the pod starts again at once with an empty volume."""
        self.empty()
        self.start()

    def empty(self) -> None:
        """Lose process and volume. The next start gets an empty volume."""
        self.kill()
        shutil.rmtree(self.data)
        self.data.mkdir()

    def abandon(self) -> subprocess.Popen[bytes]:
        """Let the process hang with its volume, as one on a node that is cut off. The pod starts again elsewhere, empty.

        Returns the process, which may continue later.
        """
        former, self.process = self.process, None
        assert former is not None
        former.send_signal(signal.SIGSTOP)
        self._abandoned.append(former)
        self.port, self.bus_port = free_ports(1), free_ports(1)
        self.data = self._home / f"data-{len(self._abandoned)}"
        self.data.mkdir()
        self.start()
        return former

    def copy_volume(self, target: Path) -> None:
        """Copy the volume of the running process as a snapshot does: everything at the same instant."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            shutil.copytree(self.data, target)
        finally:
            self.process.send_signal(signal.SIGCONT)

    def restore_volume(self, source: Path) -> None:
        """Replace the volume of a pod that is stopped by a copy."""
        assert self.process is None
        shutil.rmtree(self.data)
        shutil.copytree(source, self.data)

    def execute(self, *words: str) -> None:
        """Execute a command as the operator."""
        password = (self._passwords / "cluster" / "password").read_text().rstrip("\n")
        with redis.Redis(
            port=self.port, username=names.STORE_OPERATOR, password=password
        ) as connection:
            connection.execute_command(*words)

    def view(self) -> ClusterView:
        """What the process knows about the cluster."""
        with self.connected() as connection:
            nodes = cast("bytes", connection.execute_command("CLUSTER", "NODES"))
        return parse_view(nodes.decode(), (self.address, self.port))

    def _tls(self) -> Json:
        if not self.has_tls:
            return {}
        authority = str(self._certificates / "ca.crt")
        return {"ssl": True, "ssl_ca_certs": authority, "ssl_check_hostname": False}

    def connected(self) -> redis.Redis:
        return redis.Redis(
            port=self.port,
            username=names.STORE_USER,
            password=PASSWORD,
            retry=Retry(NoBackoff(), 0),
            **self._tls(),
        )


class FakeKube:
    """The API server: the Secret of the cluster, and on which nodes the pods run."""

    def __init__(self, pods: list[Pod], password: Path) -> None:
        self._pods, self._password = pods, password

    async def get(self, kind: Kind, namespace: str, name: str) -> Json:
        assert name == "onewriter-valkey-cluster"
        return {"data": {"password": base64.b64encode(self._password.read_bytes()).decode()}}

    async def list(self, kind: Kind, namespace: str, labels: str) -> list[Json]:
        assert kind is POD
        return [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": pod.name, "namespace": namespace, "uid": pod.name},
                "spec": {"nodeName": pod.node},
            }
            for pod in self._pods
        ]


class World:
    """The pods of three shards on three nodes, and the operator. ``replicas``: of each shard. ``kind``: of server."""

    def __init__(
        self, directory: Path, replicas: int = 1, *, kind: str = "valkey", has_tls: bool = False
    ) -> None:
        self.has_tls, self.ca_file = has_tls, directory / "certificates" / "ca.crt"
        passwords = directory / "passwords"
        passwords.mkdir()
        (passwords / "password").write_text(PASSWORD)
        self.cluster_passwords = passwords / "cluster"
        self.cluster_passwords.mkdir()
        self.write_cluster_password(ODD_PASSWORD)
        self._configuration = configuration_of(replicas)
        self.pods = [
            Pod(
                directory,
                name,
                shard,
                "abc"[(shard + number % (1 + replicas)) % 3],
                number,
                kind=kind,
                has_tls=has_tls,
            )
            for number, (name, shard) in enumerate(names.store_members(self._configuration))
        ]
        self.plans: list[StorePlan] = []
        self._skipped_seconds = 0.0
        self.operator = self._new_operator()

    def _new_operator(self) -> StoreClusterReconciler:
        return StoreClusterReconciler(
            cast("Kube", FakeKube(self.pods, self.cluster_passwords / "password")),
            self._configuration,
            Metrics(),
            self.plans.append,
            self._process,
            lambda: time.monotonic() + self._skipped_seconds,
        )

    def _process(self, pod: str, password: str) -> StoreProcess:
        """The operator's connection to a pod; with TLS by the name that the pod's certificate has."""
        host, port, user = f"{pod}{DOMAIN}", self.pod(pod).port, names.STORE_OPERATOR
        if self.has_tls:
            return StoreProcess(host, port, user, password, ca_file=str(self.ca_file))
        return StoreProcess("127.0.0.1", port, user, password)

    @contextmanager
    def operating(self, replicas: int = 1) -> Iterator[None]:
        """Run the operator in a thread of its own, for a layout with this number of replicas."""
        self._configuration = configuration_of(replicas)
        operator, is_over = self._new_operator(), threading.Event()

        async def operate() -> None:
            while not is_over.is_set():
                await operator.step()
                await asyncio.sleep(POLL_SECONDS)
            await operator.close()
            await connections_ended()

        thread = threading.Thread(target=lambda: asyncio.run(operate()), daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def until(self, is_true: Callable[[], bool], what: str, skipped_seconds: float = 0.0) -> None:
        """Wait for a state. The operator's clock skips this time after each look."""

        def looked() -> bool:
            found = is_true()
            if not found:
                self._skipped_seconds += skipped_seconds
                time.sleep(POLL_SECONDS)
            return found

        try:
            eventually(looked, SECONDS_MAX, what=what)
        except TimeoutError as error:
            error.add_note(f"the last plans: {self.plans[-3:]}")
            raise

    def until_complete(self, skipped_seconds: float = 0.0) -> None:
        """Wait until the operator that runs finds nothing missing, wherever the primaries are."""
        begun = len(self.plans)
        complete = {StoreState.COMPLETE, StoreState.MISPLACED}
        self.until(
            lambda: any(
                plan.state in complete and not plan.commands for plan in self.plans[begun + 1 :]
            ),
            "the store is not complete",
            skipped_seconds,
        )

    def until_planned(self, text: str, skipped_seconds: float = 0.0) -> None:
        """Wait until the operator that runs says this."""
        begun = len(self.plans)
        self.until(
            lambda: any(text in plan.message for plan in self.plans[begun:]), text, skipped_seconds
        )

    @property
    def url(self) -> str:
        """The URL of the store for brokers."""
        places = ",".join(f"127.0.0.1:{pod.port}" for pod in self.pods)
        if self.has_tls:
            named = ",".join(f"{pod.name}{DOMAIN}:{pod.port}" for pod in self.pods)
            return f"rediss+cluster://{names.STORE_USER}:{PASSWORD}@{named}"
        return f"redis+cluster://{names.STORE_USER}:{PASSWORD}@{places}"

    def write_cluster_password(self, password: str, previous: str = "") -> None:
        """Write what the kubelet mounts of the Secret."""
        (self.cluster_passwords / "previous-password").write_text(previous)
        (self.cluster_passwords / "password").write_text(password + "\n")

    def all_accept(self, password: str) -> bool:
        """Return whether the operator can connect to every pod with this password."""
        return all(pod.accepts(password) for pod in self.pods)

    def pod(self, name: str) -> Pod:
        return next(pod for pod in self.pods if pod.name == name)

    def primary_of(self, shard: int) -> Pod:
        """The pod that is the primary of a shard, and no other pod of it is."""
        (found,) = [pod for pod in self.primaries() if pod.shard == shard]
        return found

    def replicas_of(self, shard: int) -> list[Pod]:
        """The other pods of a shard."""
        primary = self.primary_of(shard)
        return [pod for pod in self.pods if pod.shard == shard and pod is not primary]

    def stop_all(self) -> None:
        for pod in self.pods:
            pod.end()

    def ids(self) -> set[str]:
        """The ids of all nodes that any pod knows."""
        return {node.node_id for pod in self.pods for node in pod.view().nodes}

    async def complete(self) -> None:
        """Let the operator work until nothing is missing, wherever the primaries are."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                await self.operator.step()
                plan = self.plans[-1]
                if plan.state in {StoreState.COMPLETE, StoreState.MISPLACED} and not plan.commands:
                    return
                await asyncio.sleep(POLL_SECONDS)

    async def spread(self) -> None:
        """Let the operator work until each primary is on another node."""
        async with asyncio.timeout(SECONDS_MAX):
            while len({pod.node for pod in self.primaries()}) < 3:
                await self.operator.step()
                if self.plans[-1].state in {StoreState.COMPLETE, StoreState.MISPLACED}:
                    self._skipped_seconds += SPREAD_SECONDS
                await asyncio.sleep(POLL_SECONDS)

    def primaries(self) -> list[Pod]:
        found = []
        for pod in self.pods:
            with contextlib.suppress(redis.exceptions.RedisError), pod.connected() as connection:
                if connection.info("replication")["role"] == "master":
                    found.append(pod)
        return found

    def write(self) -> None:
        """Write to every bucket."""
        for shard, connection in self._primaries_by_shard():
            for bucket in range(BUCKETS):
                key = f"ow:{{b{bucket}}}:unit"
                if slot_of(key) * 3 // SLOTS == shard:
                    connection.hset(key, "written", bucket)

    async def check(self) -> None:
        """Check that every bucket has what was written, at a primary, and that all pods are ready."""
        found: dict[int, bytes | None] = {}
        for shard, connection in self._primaries_by_shard():
            for bucket in range(BUCKETS):
                key = f"ow:{{b{bucket}}}:unit"
                if slot_of(key) * 3 // SLOTS == shard:
                    found[bucket] = cast("bytes | None", connection.hget(key, "written"))
        assert found == {bucket: str(bucket).encode() for bucket in range(BUCKETS)}
        await asyncio.to_thread(eventually, lambda: all(pod.is_ready() for pod in self.pods))

    def _primaries_by_shard(self) -> Iterator[tuple[int, redis.Redis]]:
        for pod in self.primaries():
            with pod.connected() as connection:
                yield pod.shard, connection

    def words(self) -> set[str]:
        """Return the second words of all commands so far."""
        return {str(command.words[1]) for plan in self.plans for command in plan.commands}

    def commands(self) -> set[str]:
        """All commands so far, as text."""
        return {str(command) for plan in self.plans for command in plan.commands}
