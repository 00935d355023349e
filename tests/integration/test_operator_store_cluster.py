"""The operator forms and repairs a cluster of real processes, which run with the start script and the settings of pods."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import redis
import redis.exceptions
from tests.integration.raw import eventually
from tests.servers import SERVER_PROGRAMS
from tests.unit.kube.installation_configurations import configured

from onewriter_core.cluster_views import SLOTS, slot_of
from onewriter_core.kubernetes.kinds import POD, Kind
from onewriter_operator.installation import names, valkey_configuration
from onewriter_operator.kube import Kube
from onewriter_operator.metrics import Metrics
from onewriter_operator.plan.store_shards import SPREAD_SECONDS, StorePlan, StoreState
from onewriter_operator.reconcile.store_formation import StoreClusterReconciler
from onewriter_operator.store_process import StoreProcess
from onewriter_testing.ports import free_ports

pytestmark = [pytest.mark.timeout(900), pytest.mark.full]

Json = dict[str, Any]

CONFIGURATION = configured({"store": {"shards": 3, "replicas": 1}})
BUCKETS = 64
ODD_PASSWORD = 'it\'s "odd" \\n: ü $HOME'  # noqa: S105 - of this test alone
PASSWORD = "brokers"  # noqa: S105 - of this test alone
SECONDS_MAX = 240.0
POLL_SECONDS = 0.1


class Pod:
    """One pod: a process on loopback whose address changes with each start."""

    def __init__(self, directory: Path, name: str, shard: int, node: str, number: int) -> None:
        self.name, self.shard, self.node, self._number = name, shard, node, number
        self.port, self.bus_port = free_ports(1), free_ports(1)
        self.data, self._home = directory / name / "data", directory / name
        for each in ("data", "state", "configuration", "programs"):
            (self._home / each).mkdir(parents=True)
        (self._home / "programs" / "valkey-server").symlink_to(SERVER_PROGRAMS["valkey"])
        self._passwords = directory / "passwords"
        self._starts = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.77.{self._starts}.{10 + self._number}"

    def start(self) -> None:
        self._starts += 1
        document = valkey_configuration.config_map(CONFIGURATION)
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
            "ONEWRITER_VALKEY_HOST": f"{self.name}.store",
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

    def lose_volume(self) -> None:
        """Lose process and volume; the pod starts again at once with an empty volume."""
        self.kill()
        shutil.rmtree(self.data)
        self.data.mkdir()
        self.start()

    def connected(self) -> redis.Redis:
        return redis.Redis(
            host="127.0.0.1", port=self.port, username="onewriter", password=PASSWORD
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
    """Six pods on three nodes, and the operator."""

    def __init__(self, directory: Path) -> None:
        passwords = directory / "passwords"
        passwords.mkdir()
        (passwords / "password").write_text(PASSWORD)
        self.cluster_passwords = passwords / "cluster"
        self.cluster_passwords.mkdir()
        self.write_cluster_password(ODD_PASSWORD)
        members = names.store_members(CONFIGURATION)
        self.pods = [
            Pod(directory, name, shard, "abc"[(shard + number % 2) % 3], number)
            for number, (name, shard) in enumerate(members)
        ]
        self.plans: list[StorePlan] = []
        self._skipped_seconds = 0.0
        self.operator = StoreClusterReconciler(
            cast("Kube", FakeKube(self.pods, self.cluster_passwords / "password")),
            CONFIGURATION,
            Metrics(),
            self.plans.append,
            lambda pod, password: StoreProcess(
                "127.0.0.1", self.pod(pod).port, names.STORE_OPERATOR, password
            ),
            lambda: time.monotonic() + self._skipped_seconds,
        )

    def write_cluster_password(self, password: str, previous: str = "") -> None:
        """Write what the kubelet mounts of the Secret."""
        (self.cluster_passwords / "previous-password").write_text(previous)
        (self.cluster_passwords / "password").write_text(password + "\n")

    def all_accept(self, password: str) -> bool:
        """Return whether the operator can connect to every pod with this password."""
        return all(pod.accepts(password) for pod in self.pods)

    def pod(self, name: str) -> Pod:
        return next(pod for pod in self.pods if pod.name == name)

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


@asynccontextmanager
async def formed(directory: Path) -> AsyncIterator[World]:
    world = World(directory)
    try:
        for pod in world.pods:
            pod.start()
        await world.complete()
        assert world.words() >= {"ADDSLOTSRANGE", "MEET", "REPLICATE"}
        assert len({pod.node for pod in world.primaries()}) == 3
        world.write()
        await world.check()
        world.plans.clear()
        yield world
    finally:
        await world.operator.close()
        for pod in world.pods:
            pod.kill()


async def test_a_pod_that_loses_its_volume_returns_as_a_replica_twice_in_a_row(
    tmp_path: Path,
) -> None:
    async with formed(tmp_path) as world:
        for _ in range(2):
            lost = next(pod for pod in world.primaries() if pod.shard == 0)
            lost.lose_volume()
            await world.complete()
            assert lost not in world.primaries()
            await world.check()
        assert "ADDSLOTSRANGE" not in world.words()
        assert world.words() >= {"MEET", "REPLICATE", "FORGET"}
        await world.spread()
        await world.check()


async def test_a_primary_hands_over_before_its_pod_stops_also_after_a_change_of_the_password(
    tmp_path: Path,
) -> None:
    async with formed(tmp_path) as world:
        world.write_cluster_password("changed", previous=ODD_PASSWORD)
        await asyncio.to_thread(eventually, lambda: world.all_accept("changed"))
        assert world.all_accept(ODD_PASSWORD)
        world.write_cluster_password("changed")
        await asyncio.to_thread(
            eventually, lambda: not any(pod.accepts(ODD_PASSWORD) for pod in world.pods)
        )
        leaving = next(pod for pod in world.primaries() if pod.shard == 0)
        await asyncio.to_thread(leaving.leave)
        await asyncio.to_thread(eventually, lambda: leaving not in world.primaries())
        await world.complete()  # the former primary copies its successor
        await world.check()
        await asyncio.to_thread(leaving.leave)  # a replica has nothing to hand over
        assert len(world.primaries()) == 3


async def test_all_pods_that_restart_at_once_with_other_addresses_find_each_other(
    tmp_path: Path,
) -> None:
    async with formed(tmp_path) as world:
        for pod in world.pods:
            pod.kill()
        for pod in world.pods:
            pod.start()
        await world.complete()
        await world.check()
        assert "ADDSLOTSRANGE" not in world.words()
