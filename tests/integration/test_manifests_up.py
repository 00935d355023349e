"""``onewriter up``: errors in manifests that prevent a start, and its data directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.conftest import RawClients
from tests.integration.forked_brokers import forked_brokers
from tests.integration.raw import EXCLUSIVE, SHARED, RefusedByBroker
from tests.servers import DEBIAN_REDIS, StoreServer, running_server

from onewriter_core.command import EXIT_USAGE
from onewriter_core.errors import ServerError
from onewriter_testing.ports import free_ports
from onewriter_testing.processes import LocalBrokers, running_brokers

RUN_SECONDS_MAX = 240.0
"""Time limit for the program on a busy machine. Alone it takes two seconds."""

GOOD = """
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: good}
"""


def refused(folder: Path, manifests: str = GOOD, *arguments: str) -> str:
    """Start with these manifests, check that it ends with a message and a code; return the message."""
    path = folder / "manifests.yaml"
    path.write_text(manifests)
    options = ["--port", str(free_ports(1)), "--http-port", str(free_ports(1))]
    options += ["--data-dir", str(folder / "data")]
    program = "from onewriter_core.command import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "up", "-f", str(path), *options, *arguments],
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == EXIT_USAGE, output
    assert "Traceback" not in output, output
    return output


def test_a_wrong_manifest_is_refused_by_file_document_and_field(tmp_path: Path) -> None:
    """tests/unit/core/test_manifests.py covers the other mistakes."""
    wrong = "kind: ExclusiveTopic\nmetadata: {name: t}\nspec: {partitions: many}"
    answer = refused(tmp_path, f"{GOOD}---\napiVersion: onewriter.dev/v1alpha1\n{wrong}\n")
    for word in ("manifests.yaml", "document 2", "spec.partitions", "whole number"):
        assert word in answer, answer


def test_a_second_start_on_the_same_data_directory_is_refused(tmp_path: Path) -> None:
    with running_brokers() as brokers:
        answer = refused(tmp_path, GOOD, "--data-dir", str(brokers.data_directory))
    assert "in use" in answer


def test_an_invalid_setting_is_named_by_its_variable(tmp_path: Path) -> None:
    answer = refused(tmp_path, GOOD, "--minimum-durability", "Strong")
    assert "ONEWRITER_MINIMUM_DURABILITY: Input should be 'None', 'Local'" in answer


def test_a_port_in_use_is_reported(broker: LocalBrokers, tmp_path: Path) -> None:
    answer = refused(tmp_path, GOOD, "--port", str(broker.address()[1]))
    assert "in use by another program" in answer


def test_a_store_weaker_than_promised_is_refused(tmp_path: Path) -> None:
    with running_server(appendfsync="no") as store:
        answer = refused(tmp_path, GOOD, "--redis-url", store.url)
    assert "appendfsync" in answer


def test_a_store_that_evicts_is_refused(tmp_path: Path) -> None:
    with running_server(maxmemory="100mb", maxmemory_policy="allkeys-lru") as store:
        answer = refused(tmp_path, GOOD, "--redis-url", store.url)
    assert "maxmemory-policy" in answer


@pytest.mark.full  # needs Debian's Redis; all other tests run on Valkey
@pytest.mark.skipif(not DEBIAN_REDIS.exists(), reason="Debian's Redis 7.0 is not installed")
def test_debians_redis_will_do(raw: RawClients) -> None:
    with running_server("redis7") as store, forked_brokers(redis_url=store.url) as brokers:
        raw(brokers.address()).producer("t", EXCLUSIVE).publish(b"fine")


def test_a_broker_waits_for_a_late_store(tmp_path: Path, raw: RawClients) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    store = StoreServer(folder=folder)
    brokers = LocalBrokers(tmp_path / "brokers", redis_url=store.url)
    try:
        brokers.start(wait=False)
        brokers.wait_for_event("store.waiting")
        store.start()
        brokers.wait_ready()
        raw(brokers.address()).producer("t", EXCLUSIVE).publish(b"fine")
    finally:
        brokers.stop()
        store.kill()


def test_undeclared_topics_are_refused_where_that_is_set(raw: RawClients) -> None:
    manifests = GOOD + "spec: {access: {requireClaim: false}}\n"
    with forked_brokers(manifests=manifests, settings={"require_declared": True}) as brokers:
        client = raw(brokers.address())
        client.lookup("good")  # waits for the owner
        client.producer("good", EXCLUSIVE).publish(b"fine")
        with pytest.raises(RefusedByBroker) as found:
            client.producer("undeclared", EXCLUSIVE)
        assert found.value.code is ServerError.TOPIC_NOT_FOUND


def test_modes_that_the_manifest_leaves_out_are_refused(raw: RawClients) -> None:
    manifests = GOOD + "spec: {access: {modes: [Exclusive], requireClaim: false}}\n"
    with forked_brokers(manifests=manifests) as brokers:
        client = raw(brokers.address())
        with pytest.raises(RefusedByBroker) as found:
            client.producer("good", SHARED)
        assert found.value.code is ServerError.NOT_ALLOWED_ERROR
        client.producer("good", EXCLUSIVE)
