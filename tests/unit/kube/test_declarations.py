"""Which objects the brokers receive, and in which form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onewriter_core.api.desired import read_desired
from onewriter_core.kubernetes.kinds import Key
from onewriter_core.kubernetes.objects import parse_topic
from onewriter_operator.declarations import Declarations, Desired
from onewriter_operator.store import ObjectCopy

Json = dict[str, Any]


def topic(name: str, *, made: int = 1, generation: int = 1, **more: Any) -> Json:
    about = {
        "name": name,
        "namespace": "shop",
        "uid": f"uid-{name}",
        "creationTimestamp": f"2026-01-01T00:00:{made:02}Z",
        "generation": generation,
        "annotations": more.pop("annotations", {}),
    }
    if more.pop("going", False):
        about["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    return {
        "apiVersion": "onewriter.dev/v1alpha1",
        "kind": "ExclusiveTopic",
        "metadata": about,
        "spec": more,
        "status": {"observedGeneration": 1},
    }


def claim(name: str, of: str = "orders", **subject: Any) -> Json:
    return {
        "apiVersion": "onewriter.dev/v1alpha1",
        "kind": "ProducerClaim",
        "metadata": {"name": name, "namespace": "shop", "uid": f"uid-{name}", "generation": 1},
        "spec": {"topicRef": {"name": of}, "subject": subject or {"serviceAccountName": "writer"}},
    }


def pod(name: str, phase: str = "Running", **labels: str) -> Json:
    labels = {"onewriter.dev/claim": "x", **labels}
    about = {"name": name, "namespace": "shop", "uid": f"uid-{name}", "labels": labels}
    return {"kind": "Pod", "metadata": about, "status": {"phase": phase}}


class World:
    def __init__(self, *documents: Json) -> None:
        self.store = ObjectCopy()
        self.declarations = Declarations(self.store)
        self.put(*documents)

    def put(self, *documents: Json) -> None:
        for document in documents:
            self.store.put(document)

    def reason(self, name: str, kind: str = "ExclusiveTopic") -> str:
        return self.declarations.acceptance(Key(kind, "shop", name)).reason

    def passed_on(self) -> dict[str, Json]:
        """The specs that the brokers receive, by name; checks that brokers can read them."""
        desired: Desired = self.declarations.compose()
        read_desired(desired.body)
        body = json.loads(desired.body)
        assert body["revision"] == desired.revision
        return {
            each["metadata"]["name"]: each["spec"] for each in (*body["topics"], *body["claims"])
        }

    def pods(self) -> Json:
        found: Json = json.loads(self.declarations.compose().body)["pods"]
        return found


def test_topics_and_claims_are_passed_on() -> None:
    world = World(topic("orders"), claim("primary"))
    assert set(world.passed_on()) == {"orders", "primary"}
    assert world.reason("primary", "ProducerClaim") == "Accepted"


def test_equal_states_of_two_operators_have_the_same_revision() -> None:
    documents = [topic("orders"), topic("audit"), claim("b"), claim("a")]
    one, other = World(*documents), World(*reversed(documents))
    assert one.declarations.compose() == other.declarations.compose()


def test_any_change_of_a_spec_is_another_revision() -> None:
    world = World(topic("orders"))
    before = world.declarations.compose().revision
    world.put(topic("orders", generation=2, partitions=3))
    assert world.declarations.compose().revision != before


def test_a_status_alone_is_not() -> None:
    world = World(topic("orders"))
    before = world.declarations.compose().revision
    world.put(topic("orders") | {"status": {"observedGeneration": 1, "epoch": 5}})
    assert world.declarations.compose().revision == before


def test_of_two_objects_for_one_topic_the_older_counts() -> None:
    name = "persistent://shop/default/orders"
    world = World(topic("younger", made=5, topic=name), topic("older", made=1, topic=name))
    assert world.reason("older") == "Accepted"
    assert world.reason("younger") == "ResourceConflict"
    found = world.declarations.acceptance(Key("ExclusiveTopic", "shop", "younger"))
    assert found.rival == "shop/older"
    assert "shop/older" in found.message
    assert set(world.passed_on()) == {"older"}


def test_in_the_same_second_the_uid_decides() -> None:
    name = "persistent://shop/default/orders"
    world = World(topic("b", topic=name), topic("a", topic=name))
    assert (world.reason("a"), world.reason("b")) == ("Accepted", "ResourceConflict")


def test_the_younger_takes_over_when_the_older_goes() -> None:
    name = "persistent://shop/default/orders"
    older = topic("older", made=1, topic=name)
    world = World(topic("younger", made=5, topic=name), older)
    world.store.remove(older)
    assert world.reason("younger") == "Accepted"
    assert set(world.passed_on()) == {"younger"}


def test_a_claim_waits_for_its_topic_and_shares_its_fate() -> None:
    name = "persistent://shop/default/orders"
    world = World(claim("primary"))
    assert world.reason("primary", "ProducerClaim") == "TopicMissing"
    world.put(topic("older", made=1, topic=name), topic("orders", made=2, topic=name))
    assert world.reason("primary", "ProducerClaim") == "NotServed"
    assert set(world.passed_on()) == {"older"}


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ({"partitions": -1}, "Invalid"),
        ({"topic": "orders"}, "Invalid"),
        ({"nonsense": 1}, "Invalid"),
    ],
)
def test_an_invalid_object_is_not_sent_and_holds_back_no_other(spec: Json, word: str) -> None:
    world = World(topic("bad", **spec), topic("good"))
    assert world.reason("bad") == word
    assert set(world.passed_on()) == {"good"}


def test_a_topic_whose_new_spec_is_wrong_keeps_its_old_one() -> None:
    world = World(topic("orders", partitions=2))
    world.put(topic("orders", generation=2, partitions=-1))
    assert world.reason("orders") == "Invalid"
    assert world.passed_on()["orders"]["partitions"] == 2


def test_the_claims_of_a_kept_topic_stay_declared() -> None:
    world = World(topic("orders"), claim("primary"))
    world.put(topic("orders", generation=2, compaction={"enabled": "perhaps"}))
    found = world.declarations.acceptance(Key("ExclusiveTopic", "shop", "orders"))
    assert (found.reason, found.is_kept, found.is_passed_on) == ("Invalid", True, True)
    assert world.reason("primary", "ProducerClaim") == "Accepted"
    assert set(world.passed_on()) == {"orders", "primary"}
    assert world.passed_on()["orders"] == {}


def test_a_claim_whose_new_spec_is_wrong_keeps_its_old_one() -> None:
    world = World(topic("orders"), claim("primary"))
    wrong = claim("primary", nonsense=1)
    wrong["metadata"]["generation"] = 2
    world.put(wrong)
    found = world.declarations.acceptance(Key("ProducerClaim", "shop", "primary"))
    assert (found.reason, found.is_kept) == ("Invalid", True)
    assert world.passed_on()["primary"]["subject"] == {"serviceAccountName": "writer"}


def test_a_topic_with_a_wrong_spec_is_still_the_older_one() -> None:
    name = "persistent://shop/default/one"
    world = World(topic("older", made=1, topic=name), topic("younger", made=2, topic=name))
    world.put(topic("older", made=1, generation=2, topic=name, partitions=-1))
    assert world.reason("younger") == "ResourceConflict"
    assert set(world.passed_on()) == {"older"}


def test_a_topic_with_a_wrong_spec_closes_like_any_other() -> None:
    world = World(topic("orders", deletionPolicy="Delete"), claim("primary"))
    spec: Json = {"deletionPolicy": "Delete", "partitions": -1}
    world.put(topic("orders", generation=2, going=True, **spec))
    assert world.reason("orders") == "Closing"
    assert world.passed_on()["orders"]["access"] == {"requireClaim": True}
    assert "primary" not in world.passed_on()


@pytest.mark.parametrize("switch", ["onewriter.dev/paused", "onewriter.dev/unmanaged"])
def test_a_paused_topic_keeps_its_spec_until_it_continues(switch: str) -> None:
    world = World(topic("orders", partitions=2))
    world.put(topic("orders", generation=2, partitions=3, annotations={switch: "true"}))
    assert world.passed_on()["orders"]["partitions"] == 2
    found = world.store.topic(Key("ExclusiveTopic", "shop", "orders"))
    assert found is not None
    assert world.declarations.is_held_back(found)
    world.put(topic("orders", generation=2, partitions=3))
    assert world.passed_on()["orders"]["partitions"] == 3


def test_a_topic_under_deletion_with_its_log_admits_no_producer() -> None:
    access = {"requireClaim": False, "modes": ["Shared"]}
    world = World(
        topic("orders", deletionPolicy="Delete", going=True, access=access), claim("primary")
    )
    assert world.reason("orders") == "Closing"
    passed = world.passed_on()
    assert set(passed) == {"orders"}
    assert passed["orders"]["access"] == {"requireClaim": True, "modes": ["Shared"]}


def test_a_topic_deleted_without_its_log_is_used_until_it_is_gone() -> None:
    world = World(topic("orders", going=True), claim("primary"))
    assert set(world.passed_on()) == {"orders", "primary"}


def test_a_new_topic_waits_until_it_was_looked_up() -> None:
    new = topic("orders") | {"status": {"observedGeneration": -1}}
    world = World(new)
    assert world.passed_on() == {}
    world.declarations.admit(parse_topic(new))
    assert set(world.passed_on()) == {"orders"}


def test_after_a_start_existing_topics_are_looked_up_before_the_first_send() -> None:
    new = {"status": {"observedGeneration": -1}}
    world = World(topic("shown"), topic("a") | new, topic("b") | new, topic("wrong", nonsense=1))
    assert not world.declarations.awaits_answers()
    world.declarations.start()
    assert world.declarations.awaits_answers()
    world.declarations.admit(parse_topic(topic("a")))
    world.put(topic("later") | new)
    assert world.declarations.awaits_answers()
    world.store.remove(topic("b"))
    assert not world.declarations.awaits_answers()  # "later" came after the start


def test_pods_are_resolved_by_their_labels() -> None:
    world = World(
        topic("orders"),
        claim("primary", podSelector={"matchLabels": {"app": "writer"}}),
        pod("a", app="writer"),
        pod("b", app="reader"),
        pod("done", "Succeeded", app="writer"),
    )
    assert world.pods() == {"shop/primary": ["uid-a"]}
    world.put(pod("c", app="writer"))
    assert world.pods() == {"shop/primary": ["uid-a", "uid-c"]}


def test_a_pod_without_the_label_is_not_seen() -> None:
    plain = pod("a", app="writer")
    del plain["metadata"]["labels"]["onewriter.dev/claim"]
    world = World(
        topic("orders"), claim("primary", podSelector={"matchLabels": {"app": "writer"}}), plain
    )
    assert world.pods() == {"shop/primary": []}


def test_a_piece_that_a_broker_refused_can_be_left_out() -> None:
    world = World(topic("orders"), topic("audit"))
    key = Key("ExclusiveTopic", "shop", "audit")
    desired = world.declarations.compose({(key, world.declarations.piece(key)): None})
    assert [each.name for each in desired.pieces] == ["orders"]
    world.put(topic("audit", generation=2, partitions=1))
    again = world.declarations.compose({(key, "an older piece"): None})
    assert key in again.pieces


def test_an_earlier_piece_replaces_one_that_a_broker_refused() -> None:
    world = World(topic("audit", partitions=1))
    key = Key("ExclusiveTopic", "shop", "audit")
    former = world.declarations.compose()
    world.put(topic("audit", generation=2, partitions=2))
    refused = (key, world.declarations.piece(key))
    desired = world.declarations.compose({refused: former.pieces[key]})
    assert desired == former
    assert world.declarations.compose() != former


def test_a_topic_that_is_being_deleted_is_left_out_instead_of_sent_as_it_was() -> None:
    world = World(topic("audit"))
    key = Key("ExclusiveTopic", "shop", "audit")
    former = world.declarations.compose()
    going = topic("audit", generation=2)
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.put(going)
    closing = (key, world.declarations.piece(key))
    assert world.declarations.compose({closing: former.pieces[key]}).pieces == {}


def test_the_state_of_deleted_objects_is_dropped() -> None:
    world = World()
    for number in range(500):
        found = topic(f"t{number}")
        world.put(found)
        world.store.remove(found)
    assert len(world.declarations._validations) < 200
    assert len(world.declarations._held) < 200
    assert world.declarations._pieces == {}
    assert world.declarations._by_topic == {}
