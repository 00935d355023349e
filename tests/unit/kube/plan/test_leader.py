"""The leader's Service leads to the holder's pod, or to no pod."""

from __future__ import annotations

import pytest

from onewriter_core.kubernetes.objects import LeaderService, ServicePort, parse_topic
from onewriter_core.topic_view import ProducerView
from onewriter_operator.plan.facts import PodFacts
from onewriter_operator.plan.leader import endpoints

TOPIC = parse_topic(
    {
        "apiVersion": "onewriter.dev/v1alpha1",
        "kind": "ExclusiveTopic",
        "metadata": {"name": "orders", "namespace": "shop", "uid": "t"},
    }
)
WANTED = LeaderService("orders-leader", (ServicePort(80, 80),))
HOLDER = ProducerView("w1", pod="writer-0", pod_uid="p")


@pytest.mark.parametrize(
    ("holder", "pod", "addresses"),
    [
        (HOLDER, PodFacts(ip="10.0.0.7"), [["10.0.0.7"]]),
        (HOLDER, PodFacts(ip="10.0.0.7", exists=False), []),
        (HOLDER, PodFacts(ip=""), []),
        (HOLDER, None, []),
        (None, PodFacts(ip="10.0.0.7"), []),
    ],
    ids=["a pod", "a pod that is gone", "a pod without an address", "an unknown pod", "no holder"],
)
def test_only_the_pod_of_the_holder_is_an_endpoint(
    holder: ProducerView | None, pod: PodFacts | None, addresses: list[list[str]]
) -> None:
    found = endpoints(TOPIC, WANTED, 7, holder, pod)
    assert [each["addresses"] for each in found["endpoints"]] == addresses


def test_a_pod_under_deletion_is_not_ready() -> None:
    (found,) = endpoints(TOPIC, WANTED, 7, HOLDER, PodFacts(ip="10.0.0.7", is_going=True))[
        "endpoints"
    ]
    assert found["conditions"] == {"ready": False, "serving": True, "terminating": True}
