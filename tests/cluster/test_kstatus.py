"""The results of kstatus for every kind of status, and for a topic's whole life."""

from __future__ import annotations

import time

from tests.cluster.kstatus.program import computed
from tests.cluster.operators import wait_until
from tests.cluster.worlds import World, broker, world
from tests.unit.kube.health_cases import CASES, document, title

__all__ = ["broker", "world"]


def test_every_kind_of_status() -> None:
    found = computed([document(case) for case in CASES])
    expected = [case["kstatus"] for case in CASES]
    titles = [title(case) for case in CASES]
    assert dict(zip(titles, found, strict=True)) == dict(zip(titles, expected, strict=True))
    assert set(expected) == {"InProgress", "Current", "Failed", "Terminating"}


def test_a_topics_life(world: World) -> None:
    def now(name: str) -> str:
        (found,) = computed([world.get("xt", name)])
        return found

    world.operator.stop()
    world.topic("orders", deletionPolicy="Delete")
    assert now("orders") == "InProgress", "nobody has looked at it"
    world.operator.start()
    wait_until(lambda: now("orders") == "Current")
    time.sleep(1.1)  # the older of two objects counts, and creationTimestamp has whole seconds
    world.topic("rival", topic=world.name("orders"))
    wait_until(lambda: now("rival") == "Failed")
    world.operator.stop()
    world.topic("orders", deletionPolicy="Delete", retention={"maxEntries": 10})
    assert now("orders") == "InProgress", "its new spec has not been looked at"
    world.cluster.kubectl("delete", "xt", "orders", "--wait=false", namespace=world.namespace)
    assert now("orders") == "Terminating"
    world.operator.start()
    wait_until(lambda: "orders" not in world.names("xt"))
    wait_until(lambda: now("rival") == "Current")
