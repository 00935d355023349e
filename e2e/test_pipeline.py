"""The chart's jobs copy a topic's history to tables, audit it, and trim it from the store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from e2e import manifests
from e2e.api import ANSWER_SECONDS
from e2e.clusters import TestedCluster
from e2e.faults import Faults
from e2e.installation import NAMESPACE, Installation
from e2e.pipeline import Pipeline
from e2e.world import SERVICE_URL, World
from e2e.writers import until

MESSAGES = 200
"""Messages of one epoch. Each has 10 kB, so that one epoch is more than one batch of offload."""

SIZE = 10_000
TENURES = 3


@pytest.fixture(scope="module")
def pipeline(tested: TestedCluster, installation: Installation) -> Pipeline:
    found = Pipeline(tested, installation)
    found.prepare()
    return found


@dataclass
class History:
    """A topic, and the number of its messages. Their values are the numbers below it."""

    world: World
    topic: str
    written: int = 0

    def write(self, tenures: int) -> None:
        """Let a pod write more messages, under this number of epochs."""
        name = f"from-{self.written}"
        settings = {"TENURES": tenures, "MESSAGES": MESSAGES, "SIZE": SIZE, "FIRST": self.written}
        given = {name: str(value) for name, value in settings.items()}
        self.world.apply(manifests.history(name, SERVICE_URL, self.topic, **given))

        def ended() -> str:
            pod = self.world.api.get("pods", self.world.namespace, name) or {}
            phase = str(pod.get("status", {}).get("phase"))
            return phase if phase in {"Succeeded", "Failed"} else ""

        phase = until(ended, self.world.diagnostics)
        answer = until(
            lambda: self.world.api.log(self.world.namespace, name, "writer", seconds=ANSWER_SECONDS)
        )
        assert phase == "Succeeded", answer
        self.written += int(json.loads(answer.splitlines()[-1])["written"])


@pytest.fixture(scope="module")
def history(world: World) -> History:
    """A topic with three epochs, of which the first two have ended."""
    world.apply(manifests.topic("history"), manifests.claim("history"))
    found = History(world, f"persistent://{world.namespace}/default/history")
    found.write(TENURES)
    return found


@pytest.fixture(scope="module")
def executors(installation: Installation) -> Iterator[None]:
    """Jobs whose drivers make executors."""
    installation.upgrade(spark=installation.values["spark"] | {"runner": "spark-submit"})
    yield
    installation.upgrade()


def test_helm_test_takes_ten_rows_to_a_topic_and_back(
    installation: Installation, pipeline: Pipeline
) -> None:
    del pipeline  # the fixture has loaded the image
    output = installation.helm(
        "test", "onewriter", "--filter=name=onewriter-test-pipeline", "--logs"
    )
    assert "10 rows, each once, of one epoch" in output


def test_a_driver_that_is_killed_loses_and_doubles_nothing(
    history: History, pipeline: Pipeline, faults: Faults
) -> None:
    run = pipeline.start("offload")
    killed = run.kill_behind("batch 0:", faults)
    run.succeeded()
    first, second = run.pods()
    assert first["metadata"]["uid"] == killed["metadata"]["uid"] != second["metadata"]["uid"]
    table = pipeline.table(history.topic)
    assert table["numbers"] == list(range(history.written))
    assert len(table["epochs"]) == TENURES


def test_the_audit_finds_one_writer_at_a_time(history: History, pipeline: Pipeline) -> None:
    output = pipeline.run("audit")
    assert history.topic in output
    assert "holds" in output


def test_entries_in_the_table_leave_the_store(history: History, pipeline: Pipeline) -> None:
    """The job has its own account. The ledger of the epoch that has not ended remains in the store."""
    output = pipeline.run("trim")
    (line,) = [line for line in output.splitlines() if "trimmed below" in line]
    assert line.startswith(f"{history.topic}: trimmed below ")
    assert f" {(TENURES - 1) * MESSAGES} messages verified" in line
    assert "the current ledger stays" in line


@pytest.mark.usefixtures("executors")
def test_executors_do_the_work_and_go_with_their_driver(
    history: History, pipeline: Pipeline
) -> None:
    history.write(1)
    run = pipeline.start("offload")
    driver = run.driver()
    made = until(lambda: run.executors(driver), run.diagnostics)
    assert all(pod["metadata"]["namespace"] == NAMESPACE for pod in made)
    run.succeeded()
    until(lambda: run.executors(driver) == [], run.diagnostics)
    table = pipeline.table(history.topic)
    assert table["numbers"] == list(range(history.written)), "what was trimmed is there still"
