"""The operator as a process with a real API server and a fake broker."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import yaml
from tests.cluster.control_plane import WAIT_SECONDS, ControlPlane
from tests.cluster.operators import wait_until
from tests.cluster.worlds import API, World, endpoints, leads_to, one_world, pod
from tests.unit.kube.fake_broker import producer_group, status

Json = dict[str, Any]


@pytest.fixture(scope="module")
def shared(api_server: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with one_world(api_server, tmp_path_factory.mktemp("operator")) as found:
        yield found


@pytest.fixture
def world(shared: World) -> Iterator[World]:
    yield shared
    shared.clear()


# ------------------------------------------------------------ spec to broker, broker to status


def test_a_topic_and_its_claim_reach_the_broker_and_its_history_is_shown(world: World) -> None:
    world.topic()
    world.claim()
    world.until("Ready", "True/Ready")
    world.until("Ready", "True/Ready", "pclaim", "primary")
    assert world.broker.fake.topics() == [world.name("orders")]
    assert world.broker.fake.claims() == [f"{world.namespace}/primary"]
    world.writes(epoch=3)
    world.until("WriterActive", "True/Held")
    world.until("Granted", "True/Granted", "pclaim", "primary")
    found = world.status()
    assert found["epoch"] == 3
    assert found["holder"]["pod"] == "writer-3"
    assert found["observedGeneration"] == world.get("xt")["metadata"]["generation"]
    assert world.status("pclaim", "primary")["pod"] == "writer-3"
    wait_until(lambda: world.events("EpochAdvanced"))
    wait_until(lambda: world.events("ClaimGranted"))
    world.cluster.kubectl(
        *("wait", "--for=condition=Ready", "xt/orders", f"--timeout={WAIT_SECONDS}s"),
        namespace=world.namespace,
    )


def test_a_changed_spec_reaches_the_broker(world: World) -> None:
    world.topic(partitions=1)
    world.until("Ready", "True/Ready")
    world.topic(partitions=4)
    wait_until(lambda: world.status()["observedGeneration"] == 2)
    world.until("PolicyApplied", "True/Applied")
    assert world.broker.fake.bodies[-1]["topics"][0]["spec"]["partitions"] == 4


def test_a_field_that_is_taken_out_again_counts_no_more(world: World) -> None:
    world.topic(partitions=2, retention={"maxEntries": 7}, deletionPolicy="Delete")
    world.until("Ready", "True/Ready")
    wait_until(lambda: world.get("xt")["metadata"].get("finalizers"))

    def entries_max() -> int | None:
        spec = world.broker.fake.bodies[-1]["topics"][0]["spec"]
        found: int | None = spec.get("retention", {}).get("maxEntries")
        return found

    assert entries_max() == 7
    world.topic(partitions=2)
    wait_until(lambda: entries_max() is None)
    world.until("PolicyApplied", "True/Applied")
    wait_until(lambda: not world.get("xt")["metadata"].get("finalizers"))


def test_a_deleted_topic_leaves_the_broker_and_its_log_stays(world: World) -> None:
    world.topic()
    world.until("Ready", "True/Ready")
    world.delete("xt")
    wait_until(lambda: world.broker.fake.topics() == [])
    assert world.broker.fake.deletions == []


def test_a_topic_that_was_there_is_adopted(world: World) -> None:
    world.broker.do(
        lambda: world.broker.fake.stored.update({world.name("orders"): status(7, "Idle")})
    )
    world.topic()
    world.until("PolicyApplied", "True/Adopted")
    assert world.status()["epoch"] == 7
    wait_until(lambda: world.events("TopicAdopted"))


def test_a_claim_waits_for_its_topic(world: World) -> None:
    world.claim()
    world.until("Ready", "False/TopicMissing", "pclaim", "primary")
    world.topic()
    world.until("Ready", "True/Ready", "pclaim", "primary")


def test_a_quota_that_refuses_producers_is_shown_until_it_does_not(world: World) -> None:
    world.topic()
    world.until("Ready", "True/Ready")
    reason = "quota exceeded: namespace shop has 100 producers"
    problem = {"reason": reason, "since": "2026-01-01T00:00:00.000Z", "holds": False}
    fake = world.broker.fake
    world.broker.do(lambda: fake.report_quotas({world.name("orders"): problem}))
    world.until("Ready", "False/QuotaExceeded")
    shown = world.cluster.kubectl("get", "xt", "orders", "-o=wide", namespace=world.namespace)
    assert f"producers are refused since 2026-01-01T00:00:00.000Z: {reason}" in shown.stdout
    world.writes(epoch=3)
    world.until("Serving", "True/QuotaExceeded")
    assert world.condition("Ready") == "True/Ready", "its writer continues"
    world.broker.do(lambda: fake.report_quotas({}))
    world.until("Serving", "True/Served")


# ------------------------------------------------------------ conflict, drift, wrong input


def test_of_two_objects_for_one_topic_the_older_wins_and_the_younger_follows(world: World) -> None:
    name = f"persistent://{world.namespace}/default/one"
    world.topic("older", topic=name)
    world.until("Ready", "True/Ready", name="older")
    time.sleep(1.1)  # creationTimestamp has whole seconds
    world.topic("younger", topic=name)
    world.until("Ready", "False/ResourceConflict", name="younger")
    message = [
        each["message"]
        for each in world.status(name="younger")["conditions"]
        if each["type"] == "Conflict"
    ]
    assert f"{world.namespace}/older" in message[0]
    assert world.broker.fake.topics() == [name]
    wait_until(lambda: world.events("ResourceConflict"))
    world.delete("xt", "older")
    world.until("Ready", "True/Ready", name="younger")
    world.until("Conflict", "False/NoConflict", name="younger")


def test_a_status_edited_by_hand_is_put_right_and_shown(world: World) -> None:
    world.topic()
    world.writes(epoch=3)
    world.until("WriterActive", "True/Held")
    patch = '{"status":{"epoch":99,"durability":"AllReplicas"}}'
    world.cluster.kubectl(
        "patch", "xt", "orders", "--subresource=status", "--type=merge", "-p", patch,
        namespace=world.namespace,
    )  # fmt: skip
    world.until("Drifted", "True/Repaired")
    found = world.status()
    assert (found["epoch"], found["durability"]) == (3, "Local")
    wait_until(lambda: world.events("DriftRepaired"))
    assert wait_until(lambda: world.operator.metric("onewriter_drift_repaired_total"))


def test_a_foreign_field_of_the_status_is_removed(world: World) -> None:
    world.topic()
    world.until("Ready", "True/Ready")
    patch = '{"status":{"holder":{"producerName":"me"}}}'
    world.cluster.kubectl(
        "patch", "xt", "orders", "--subresource=status", "--type=merge", "-p", patch,
        namespace=world.namespace,
    )  # fmt: skip
    wait_until(lambda: "holder" not in world.status())
    world.until("Drifted", "True/Repaired")


def test_the_condition_of_another_controller_stays(world: World) -> None:
    world.topic()
    world.until("Ready", "True/Ready")
    audited = {
        "type": "Audited",
        "status": "True",
        "reason": "X",
        "message": "",
        "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    document = {
        "apiVersion": API,
        "kind": "ExclusiveTopic",
        "metadata": {"name": "orders"},
        "status": {"conditions": [audited]},
    }
    world.cluster.kubectl(
        "apply", "--server-side", "--subresource=status", "--field-manager=auditor", "-f", "-",
        stdin=yaml.safe_dump(document), namespace=world.namespace,
    )  # fmt: skip
    world.writes(epoch=3)
    world.until("WriterActive", "True/Held")
    assert world.condition("Audited") == "True/X"


def test_what_other_field_managers_add_to_a_topic_stays(world: World) -> None:
    world.topic(deletionPolicy="Delete")
    world.until("Ready", "True/Ready")
    wait_until(lambda: world.get("xt")["metadata"].get("finalizers"))
    marks = {"example.com/team": "shop"}
    change = json.dumps({"metadata": {"labels": marks, "annotations": marks}})
    world.cluster.kubectl(
        *("patch", "xt", "orders", "--type=merge", "--field-manager=auditor", "-p", change),
        namespace=world.namespace,
    )
    world.noticed()  # the operator has reconciled the topic since
    found = world.get("xt")["metadata"]
    assert (found["labels"], found["annotations"]["example.com/team"]) == (marks, "shop")
    assert found["finalizers"] == ["onewriter.dev/topic-cleanup"]
    assert world.condition("Ready") == "True/Ready"
    assert world.condition("Drifted") == "False/NoDrift"


def test_a_foreign_desired_state_is_replaced(world: World) -> None:
    world.topic()
    world.until("Ready", "True/Ready")

    def by_hand() -> None:
        world.broker.fake.revision = "by hand"
        world.broker.fake.cut()

    world.broker.do(by_hand)
    world.until("Drifted", "True/Repaired")
    wait_until(lambda: world.broker.fake.revision != "by hand")


# ------------------------------------------------------------ commands of a user


def test_a_paused_topic_keeps_its_spec(world: World) -> None:
    world.topic(partitions=1)
    world.until("Ready", "True/Ready")
    world.annotate("onewriter.dev/paused=true")
    world.topic(annotations={"onewriter.dev/paused": "true"}, partitions=2)
    world.until("PolicyApplied", "False/Paused")
    assert world.broker.fake.bodies[-1]["topics"][0]["spec"]["partitions"] == 1
    world.annotate("onewriter.dev/paused-")
    world.until("PolicyApplied", "True/Applied")
    assert world.broker.fake.bodies[-1]["topics"][0]["spec"]["partitions"] == 2


def test_an_unmanaged_topic_is_left_alone_and_deleted_without_its_log(world: World) -> None:
    world.topic(deletionPolicy="Delete")
    world.until("Ready", "True/Ready")
    wait_until(lambda: world.get("xt")["metadata"].get("finalizers"))
    world.annotate("onewriter.dev/unmanaged=true")
    world.until("Ready", "Unknown/Unmanaged")
    wait_until(lambda: not world.get("xt")["metadata"].get("finalizers"))
    world.delete("xt")
    assert world.broker.fake.deletions == []


def test_a_person_fences_an_epoch_and_no_later_one(world: World) -> None:
    world.topic()
    world.writes(epoch=3)
    world.until("WriterActive", "True/Held")
    world.noticed(fence="2")
    assert world.broker.fake.fences == []
    world.annotate("onewriter.dev/fence=3")
    wait_until(lambda: world.broker.fake.fences == [(world.name("orders"), 3)])
    wait_until(lambda: world.events("FencedByOrder"))
    world.writes(epoch=4)
    wait_until(lambda: world.status().get("epoch") == 4)
    world.noticed()
    assert world.broker.fake.fences == [(world.name("orders"), 3)]
    assert world.operator.metric("onewriter_fence_annotations") == 1


def refusals(world: World) -> list[Json]:
    """Return the Events about refused handovers, the oldest first."""
    return sorted(world.events("HandedOverByOrder"), key=lambda event: str(event["eventTime"]))


def test_a_repeated_refused_order_is_answered_immediately(world: World) -> None:
    world.topic()
    world.writes(epoch=3)
    world.until("WriterActive", "True/Held")

    def is_answered(times: int) -> bool:
        return len(world.broker.fake.handovers) == said_times(refusals(world)) == times

    for times in (1, 2, 3):
        world.annotate("onewriter.dev/handover=3")
        wait_until(partial(is_answered, times), explain=lambda: refusals(world))
        world.noticed(handover=None)
    (event,) = refusals(world)
    assert event["type"] == "Warning"
    assert "(annotation): no producer is waiting" in event["note"]


def said_times(events: list[Json]) -> int:
    """Return how often an Event was repeated, from its count."""
    series = events[0].get("series") or {} if events else {"count": 0}
    return int(series.get("count", 1))


def test_an_order_with_a_mark_is_a_new_one_and_its_answer_names_it(world: World) -> None:
    world.topic()
    world.writes(epoch=3)
    world.until("WriterActive", "True/Held")

    def is_reported(note: str) -> bool:
        return note in [event["note"] for event in refusals(world)]

    for mark in ("a", "b", "c"):
        world.annotate(f"onewriter.dev/handover=3#{mark} w2")  # directly over the previous one
        reported = (
            f"Epoch 3 was to be handed over to w2 (annotation #{mark}): no producer is waiting"
        )
        wait_until(
            partial(is_reported, reported),
            explain=lambda: refusals(world),
        )
    assert world.broker.fake.handovers == [(world.name("orders"), 3, "w2")] * 3


def test_reconcile_at_repeats_all_look_ups(world: World) -> None:
    world.topic()
    world.until("Ready", "True/Ready")
    topic = world.name("orders")
    world.broker.do(lambda: world.broker.fake.stored.update({topic: status(12, "Idle")}))
    world.annotate("onewriter.dev/reconcile-at=now")
    wait_until(lambda: world.status().get("epoch") == 12)


# ------------------------------------------------------------ deletion with the log


def test_a_log_goes_with_its_object_after_the_door_is_closed(world: World) -> None:
    world.topic(deletionPolicy="Delete", access={"requireClaim": False})
    world.claim()
    world.writes(epoch=2)
    world.until("WriterActive", "True/Held")
    world.delete("xt")
    assert world.broker.fake.deletions == [(world.name("orders"), True)]
    closed = [body for body in world.broker.fake.bodies if body["topics"] and not body["claims"]]
    assert closed[-1]["topics"][0]["spec"]["access"]["requireClaim"] is True


def test_a_log_that_is_not_empty_stays_if_so_wanted(world: World) -> None:
    world.broker.do(lambda: world.broker.fake.entries.update({world.name("orders"): 3}))
    world.topic(deletionPolicy="DeleteIfEmpty")
    world.until("Ready", "True/Ready")
    wait_until(lambda: world.get("xt")["metadata"].get("finalizers"))
    world.delete("xt")
    assert world.broker.fake.deletions == []
    wait_until(lambda: world.events("TopicRetained"))


def test_the_finalizers_of_others_stay(world: World) -> None:
    about = {"name": "orders", "finalizers": ["example.com/mine"]}
    spec = {"deletionPolicy": "Delete"}
    world.apply({"apiVersion": API, "kind": "ExclusiveTopic", "metadata": about, "spec": spec})
    wait_until(lambda: len(world.get("xt")["metadata"].get("finalizers", ())) == 2)
    world.cluster.kubectl("delete", "xt", "orders", "--wait=false", namespace=world.namespace)
    wait_until(lambda: world.get("xt")["metadata"]["finalizers"] == ["example.com/mine"])
    world.cluster.kubectl(
        "patch", "xt", "orders", "--type=merge", "-p", '{"metadata":{"finalizers":[]}}',
        namespace=world.namespace,
    )  # fmt: skip
    wait_until(lambda: world.broker.fake.topics() == [])


# ------------------------------------------------------------ the leader's Service


def test_the_service_leads_only_to_the_writer(world: World) -> None:
    world.topic(leaderService={"name": "leader", "ports": [{"port": 80, "targetPort": 8080}]})
    pods = [pod(world, f"writer-{number}") for number in (1, 2)]
    for number, found in enumerate(pods, 1):
        writer = producer_group(f"w{number}", None, f"writer-{number}", epoch=number)
        writer["podUID"] = found["metadata"]["uid"]
        world.broker.serve(world.name("orders"), status(number, holders=[writer]))
        leads_to(world, [found["status"]["podIP"]], number)
    world.broker.serve(world.name("orders"), status(2, "Vacant"))
    wait_until(lambda: endpoints(world) == [])
    service = world.get("service", "leader")
    assert "selector" not in service["spec"]
    assert service["metadata"]["ownerReferences"][0]["name"] == "orders"


@pytest.mark.parametrize("label", ["onewriter.dev/claim", "app"])
def test_a_writer_under_deletion_is_a_terminating_endpoint_with_any_labels(
    world: World, label: str
) -> None:
    world.topic(leaderService={"name": "leader", "ports": [{"port": 80}]})
    found = pod(world, "writer-1", labels={label: "primary"})
    patch_finalizers(world, ["example.com/wait"])  # its deletion waits for this finalizer
    writer = producer_group("w1", None, "writer-1", epoch=1) | {"podUID": found["metadata"]["uid"]}
    world.broker.serve(world.name("orders"), status(1, holders=[writer]))
    leads_to(world, [found["status"]["podIP"]], 1)
    assert is_terminating(world) == [False]
    world.cluster.kubectl("delete", "pod", "writer-1", "--wait=false", namespace=world.namespace)
    wait_until(lambda: is_terminating(world) == [True], explain=lambda: is_terminating(world))
    patch_finalizers(world, [])
    wait_until(lambda: endpoints(world) == [], explain=lambda: endpoints(world))


def patch_finalizers(world: World, finalizers: list[str]) -> None:
    change = json.dumps({"metadata": {"finalizers": finalizers}})
    world.cluster.kubectl(
        "patch", "pod", "writer-1", "--type=merge", "-p", change, namespace=world.namespace
    )


def is_terminating(world: World) -> list[bool]:
    found = world.get("endpointslice", "leader-leader-ipv4").get("endpoints") or ()
    return [each["conditions"]["terminating"] for each in found]


def test_a_selector_that_others_add_is_removed_with_its_slices(world: World) -> None:
    """Kubernetes writes slices of all pods that a selector selects, and leaves them when it is removed."""
    world.topic(leaderService={"name": "leader", "ports": [{"port": 80}]})
    wait_until(lambda: "leader-leader-ipv4" in world.names("endpointslice"))
    foreign = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "leader-abcde",
            "labels": {
                "kubernetes.io/service-name": "leader",
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            },
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.9"]}],
        "ports": [{"port": 80, "protocol": "TCP"}],
    }
    world.apply(foreign)
    world.cluster.kubectl(
        *("patch", "service", "leader", "--type=json", "-p"),
        '[{"op": "add", "path": "/spec/selector", "value": {"app": "stock"}}]',
        namespace=world.namespace,
    )
    wait_until(lambda: not world.get("service", "leader")["spec"].get("selector"))
    wait_until(lambda: list(world.names("endpointslice")) == ["leader-leader-ipv4"])
    world.until("Drifted", "True/Repaired")


def test_a_leader_service_that_was_changed_or_deleted_comes_back(world: World) -> None:
    world.topic(leaderService={"name": "leader", "ports": [{"port": 80}]})
    wait_until(lambda: world.names("endpointslice"))
    world.until("Ready", "True/Ready")
    world.cluster.kubectl(
        "patch", "service", "leader", "--type=merge", "-p",
        '{"spec":{"ports":[{"port":81,"targetPort":81,"protocol":"TCP"}]}}',
        namespace=world.namespace,
    )  # fmt: skip
    wait_until(
        lambda: [each["port"] for each in world.get("service", "leader")["spec"]["ports"]] == [80]
    )
    world.until("Drifted", "True/Repaired")
    world.cluster.kubectl(
        "delete", "endpointslice", "leader-leader-ipv4", namespace=world.namespace
    )
    wait_until(lambda: "leader-leader-ipv4" in world.names("endpointslice"))


def test_additions_that_redirect_a_leader_service_are_removed(world: World) -> None:
    world.topic(leaderService={"name": "leader", "ports": [{"port": 80}]})
    world.until("Ready", "True/Ready")
    about = {"name": "by-hand", "labels": {"kubernetes.io/service-name": "leader"}}
    world.apply(
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": about,
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.1.0.99"]}],
        }
    )
    wait_until(lambda: "by-hand" not in world.names("endpointslice"))
    world.until("Drifted", "True/Repaired")
    addition = '{"spec":{"selector":{"app":"stock"},"externalIPs":["192.0.2.1"]}}'
    patch = ("patch", "service", "leader", "--type=merge", "-p", addition)
    world.cluster.kubectl(*patch, namespace=world.namespace)
    wait_until(
        lambda: not {"selector", "externalIPs"} & set(world.get("service", "leader")["spec"])
    )


def test_labels_and_annotations_of_others_stay_on_a_leader_service(world: World) -> None:
    world.topic(leaderService={"name": "leader", "ports": [{"port": 80}]})
    world.until("Ready", "True/Ready")
    for verb in ("annotate", "label"):
        mark = (verb, "service", "leader", "example.com/team=shop")
        world.cluster.kubectl(*mark, namespace=world.namespace)
    before = world.get("service", "leader")["metadata"]["resourceVersion"]
    world.noticed()  # the operator has reconciled the topic since
    after = world.get("service", "leader")["metadata"]
    assert after["labels"]["example.com/team"] == "shop"
    assert after["resourceVersion"] == before, "the operator writes nothing"


def test_additions_to_a_leader_slice_are_removed_and_labels_of_others_stay(world: World) -> None:
    world.topic(leaderService={"name": "leader", "ports": [{"port": 80}]})
    wait_until(lambda: endpoints(world) == [])
    world.until("Ready", "True/Ready")
    name = "leader-leader-ipv4"
    mark = ("label", "endpointslice", name, "example.com/team=shop")
    world.cluster.kubectl(*mark, namespace=world.namespace)
    addition = '{"endpoints": [{"addresses": ["10.1.0.99"]}]}'
    patch = ("patch", "endpointslice", name, "--type=merge", "-p", addition)
    world.cluster.kubectl(*patch, namespace=world.namespace)
    wait_until(lambda: endpoints(world) == [], explain=lambda: endpoints(world))
    world.until("Drifted", "True/Repaired")
    labels = world.get("endpointslice", name)["metadata"]["labels"]
    assert labels["example.com/team"] == "shop"


def test_a_foreign_service_is_not_taken_over(world: World) -> None:
    own = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "leader"}}
    world.apply(own | {"spec": {"selector": {"app": "mine"}, "ports": [{"port": 1}]}})
    world.topic(leaderService={"name": "leader", "ports": [{"port": 80}]})
    world.until("Stalled", "True/ServiceTaken")
    found = world.get("service", "leader")
    assert found["spec"]["selector"] == {"app": "mine"}
    assert "ownerReferences" not in found["metadata"]


def test_a_renamed_service_replaces_the_old_one(world: World) -> None:
    world.topic(leaderService={"name": "one", "ports": [{"port": 80}]})
    wait_until(lambda: "one" in world.names("service"))
    world.topic(leaderService={"name": "two", "ports": [{"port": 80}]})
    wait_until(lambda: list(world.names("service")) == ["two"])
    wait_until(lambda: list(world.names("endpointslice")) == ["two-leader-ipv4"])


# ------------------------------------------------------------ pods selected by label


def test_selected_pods_reach_the_broker_as_uids(world: World) -> None:
    world.topic()
    world.claim(podSelector={"matchLabels": {"app": "writer"}})
    world.until("Ready", "True/Ready", "pclaim", "primary")
    name = f"{world.namespace}/primary"
    assert world.broker.fake.bodies[-1]["pods"] == {name: []}
    found = pod(world, "writer-1", labels={"app": "writer", "onewriter.dev/claim": "primary"})
    uid = found["metadata"]["uid"]
    wait_until(lambda: world.broker.fake.bodies[-1]["pods"] == {name: [uid]})
    world.cluster.kubectl(
        "delete", "pod", "writer-1", "--grace-period=0", "--force", namespace=world.namespace
    )
    wait_until(lambda: world.broker.fake.bodies[-1]["pods"] == {name: []})
