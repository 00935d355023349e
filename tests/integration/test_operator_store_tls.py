"""A cluster with TLS between its processes, the operator and brokers: the pods' script and settings with real processes.

The server is Debian's Redis, because the Valkey of the image and of the tests is built without TLS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cluster.pki import Authority
from tests.integration.continuous_writer import ContinuousWriter
from tests.integration.raw import contents_of, eventually
from tests.integration.store_pods import BUCKETS, DOMAIN, PodBrokers, World, pod_names
from tests.servers import SERVER_PROGRAMS

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.full,
    pytest.mark.skipif(
        "redis7" not in SERVER_PROGRAMS, reason="Debian's Redis, which has TLS, is not installed"
    ),
]


def issue(world: World) -> None:
    """Issue the certificate of all pods, with an authority of its own, which is trusted beside the former one."""
    former = world.ca_file.read_text() if world.ca_file.exists() else ""
    authority = Authority(world.ca_file.parent)
    authority.server("tls", [f"{pod.name}{DOMAIN}" for pod in world.pods], is_client=True)
    world.ca_file.write_text(authority.certificate.read_text() + former)


@contextmanager
def formed(directory: Path, *, has_tls: bool) -> Iterator[World]:
    """A cluster with data, without an operator."""
    world = World(directory, kind="redis7", has_tls=has_tls)
    try:
        issue(world)
        with pod_names():
            for pod in world.pods:
                pod.start()
            with world.operating():
                world.until_complete()
            world.write()
            asyncio.run(world.check())
            yield world
    finally:
        world.stop_all()


def test_a_cluster_with_tls_is_repaired_and_follows_its_certificate(tmp_path: Path) -> None:
    with formed(tmp_path, has_tls=True) as world:
        with world.operating():
            lost = world.primary_of(0)
            lost.lose_volume()
            world.until_complete()
            assert lost not in world.primaries()
            leaving = world.primary_of(1)
            leaving.leave()
            eventually(lambda: leaving not in world.primaries())
            world.until_complete()
            issue(world)
            eventually(lambda: all("was renewed" in pod.log_text() for pod in world.pods))
            lost = world.primary_of(2)
            lost.lose_volume()
            world.until_complete()
        asyncio.run(world.check())
        Authority(world.ca_file.parent)  # one that signed nothing
        with world.operating():
            world.until_planned("no pod of the store answers: onewriter-valkey-0-0.store")
            world.until_planned("certificate verify failed")


def test_a_cluster_gets_and_loses_tls_while_all_its_pods_are_stopped(tmp_path: Path) -> None:
    with formed(tmp_path, has_tls=False) as world:
        for has_tls in (True, False):
            for pod in world.pods:
                pod.stop()
            world.has_tls = has_tls
            for pod in world.pods:
                pod.has_tls = has_tls
                # Replicas of Redis 7.0 may keep the former address of a primary that the others reported.
                pod.start(moves=False)
            with world.operating():
                world.until_complete()
            asyncio.run(world.check())


def test_brokers_check_the_names_that_the_pods_announce(tmp_path: Path, topic: str) -> None:
    with formed(tmp_path, has_tls=True) as world:
        settings: dict[str, object] = {"buckets": BUCKETS, "redis_ca_file": str(world.ca_file)}
        brokers = PodBrokers(
            tmp_path / "brokers", redis_url=world.url, supervised=False, settings=settings
        )
        with world.operating():
            try:
                brokers.start()
                with ContinuousWriter(topic, brokers) as writer:
                    writer.has_acked(50)
                    leaving = world.primary_of(0)
                    leaving.leave()
                    eventually(lambda: leaving not in world.primaries())
                    world.until_complete()
                    writer.has_acked(50)
                assert set(writer.acked) <= set(contents_of(brokers.address(), topic))
            finally:
                brokers.stop()
