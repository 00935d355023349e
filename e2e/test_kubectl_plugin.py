"""``kubectl onewriter`` with a complete installation: through port-forwards, with tokens made for it."""

from __future__ import annotations

import base64
import json
import sys
import tarfile
from pathlib import Path

import pytest
from e2e.installation import NAMESPACE, RELEASE, Installation
from e2e.manifests import PATIENT, STOCK
from e2e.world import World
from e2e.writers import Writers
from tests.cluster import commands
from tests.cluster.control_plane import COMMAND_SECONDS, WAIT_SECONDS

IN_TIME = ("--timeout-seconds", str(WAIT_SECONDS))
"""The plugin waits for the operator as long as the tests wait for anything."""

PLUGIN = "from onewriter_kubectl.cli import main; main()"


class Plugin:
    """The plugin, run where kubectl can reach the cluster."""

    def __init__(self, installation: Installation, namespace: str) -> None:
        self.cluster = installation.cluster
        self._namespace = namespace

    def __call__(self, *words: str) -> str:
        """Run the plugin and return its output; fails with its error message."""
        cluster = self.cluster
        program = cluster.tool("kubectl")
        where = (f"--kubeconfig={cluster.kubeconfig}", f"--namespace={self._namespace}")
        done = commands.run(
            [
                *(*cluster.enter(), "env", f"ONEWRITER_KUBECTL={program}"),
                *(sys.executable, "-c", PLUGIN, *words, *where),
            ],
            seconds=COMMAND_SECONDS,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def plugin(world: World) -> Plugin:
    return Plugin(world.installation, world.namespace)


@pytest.fixture(scope="module")
def writers(world: World) -> Writers:
    return world.writers(STOCK, "asked", spec=PATIENT)


def test_the_brokers_answer_through_port_forwards(plugin: Plugin, writers: Writers) -> None:
    writing_pod = writers.settled()
    assert f"{writing_pod.name} (producer " in plugin("who", writers.name)
    reported = json.loads(plugin("history", writers.name, "--output=json"))["records"]
    assert writing_pod.epoch in {int(each["epoch"]) for each in reported if each.get("epoch")}
    assert "waiters:" in plugin("status", writers.name, "--live")
    why = plugin("why", writers.name, "--live")
    assert f"is written by {writing_pod.name}" in why
    assert "1 waits, in this order:" in why
    assert "This may be outdated" not in why


def test_orders_through_the_operator_and_past_it(plugin: Plugin, writers: Writers) -> None:
    writing_pod = writers.settled()
    assert f"done: epoch {writing_pod.epoch} " in plugin(
        "handover", writers.name, "--yes", *IN_TIME
    )
    after = writers.succeeded(writing_pod)
    writers.settled()
    assert f"done: epoch {after.epoch} " in plugin("handover", writers.name, "--yes", "--direct")
    writers.succeeded(after)
    assert writers.settled().uid == writing_pod.uid


def test_the_report_is_complete_and_contains_no_secret(plugin: Plugin, tmp_path: Path) -> None:
    path = tmp_path / "report.tar.gz"
    plugin("report", f"--file={path}")
    with tarfile.open(path) as archive:
        texts = {}
        for each in archive.getmembers():
            file = archive.extractfile(each)
            assert file is not None
            texts[each.name.partition("/")[2]] = file.read().decode()
    assert "errors.txt" not in texts, texts["errors.txt"]
    pods = texts["installation/pods.txt"].split()
    for part, word in (("broker", "onewriter_buckets_owned"), ("operator", "onewriter_leader")):
        own = [pod for pod in pods if pod.startswith(f"{RELEASE}-{part}-")]
        assert own
        assert all(word in texts[f"pods/{pod}/metrics.txt"] for pod in own)
        assert all(texts[f"pods/{pod}/{part}.log"] for pod in own)
    assert f"pods/{RELEASE}-valkey-0/valkey.log" in texts
    secret = plugin.cluster.get("secret", f"{RELEASE}-valkey-password", namespace=NAMESPACE)
    whole = "\n".join(texts.values())
    for value in secret["data"].values():
        assert base64.b64decode(value).decode() not in whole
        assert value not in whole
