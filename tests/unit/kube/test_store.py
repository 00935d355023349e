"""The store of cluster objects: order of updates, indexes, and the sweep."""

from __future__ import annotations

from typing import Any

from onewriter_core.kubernetes.kinds import Key
from onewriter_operator.store import ObjectCopy

Json = dict[str, Any]


def pod(name: str, version: int, uid: str = "", **labels: str) -> Json:
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "shop",
            "uid": uid or name,
            "resourceVersion": str(version),
            "labels": labels,
        },
    }


def claim(name: str, topic: str) -> Json:
    about = {"name": name, "namespace": "shop", "uid": name, "resourceVersion": "1"}
    return {"kind": "ProducerClaim", "metadata": about, "spec": {"topicRef": {"name": topic}}}


def key(kind: str, name: str) -> Key:
    return Key(kind, "shop", name)


def test_older_news_is_ignored() -> None:
    store = ObjectCopy()
    assert store.put(pod("a", 5))
    assert not store.put(pod("a", 4, app="old"))
    assert not store.put(pod("a", 5))
    assert store.put(pod("a", 6))


def test_a_new_object_of_the_same_name_counts_whatever_its_version() -> None:
    store = ObjectCopy()
    store.put(pod("a", 500, "u1"))
    assert store.put(pod("a", 3, "u2"))
    assert store.pod("u1") is None
    assert store.pod("u2") is not None


def test_late_news_of_a_removed_object_does_not_bring_it_back() -> None:
    store = ObjectCopy()
    store.put(pod("a", 5, "u1"))
    store.remove(pod("a", 7, "u1"))
    assert not store.put(pod("a", 6, "u1"))
    assert not store.put(pod("a", 7, "u1"))
    assert store.get(key("Pod", "a")) is None


def test_an_object_that_lost_its_watched_label_and_got_it_again_is_back() -> None:
    store = ObjectCopy()
    store.put(pod("a", 5, "u1"))
    store.remove(pod("a", 6, "u1"))  # what a watch with a selector says of it
    assert store.put(pod("a", 8, "u1", app="back"))
    assert store.pod("u1") is not None
    assert not store.put(pod("a", 7, "u1"))


def test_the_removal_of_an_earlier_object_leaves_its_successor() -> None:
    store = ObjectCopy()
    store.put(pod("a", 5, "u2"))
    store.remove(pod("a", 4, "u1"))
    assert store.pod("u2") is not None


def test_claims_and_dependents_are_found() -> None:
    store = ObjectCopy()
    store.put(claim("b", "orders"))
    store.put(claim("a", "orders"))
    store.put(claim("c", "other"))
    names = [each.key.name for each in store.claims_of(key("ExclusiveTopic", "orders"))]
    assert names == ["a", "b"]
    owned = pod("p", 1)
    owned["metadata"]["ownerReferences"] = [{"uid": "t1"}]
    store.put(owned)
    assert [each.key.name for each in store.owned_by("t1")] == ["p"]
    store.remove(owned)
    assert store.owned_by("t1") == []


def test_listeners_are_called_after_every_change() -> None:
    store, received = ObjectCopy(), []
    store.listen(lambda each, own: received.append((each.name, store.get(each) is not None, own)))
    store.put(pod("a", 1))
    store.put(pod("a", 2), is_own=True)
    store.remove(pod("a", 2))
    assert received == [("a", True, False), ("a", True, True), ("a", False, False)]


def test_a_sweep_finds_what_the_watch_missed() -> None:
    store = ObjectCopy()
    for name in ("kept", "gone", "changed"):
        store.put(pod(name, 1))
    before = store.versions("Pod")
    missed = store.sweep([pod("kept", 1), pod("changed", 2), pod("new", 3)], before)
    assert sorted(each.name for each in missed) == ["changed", "gone", "new"]
    assert store.get(key("Pod", "gone")) is None
    assert store.versions("Pod")[key("Pod", "changed")] == "2"


def test_a_sweep_does_not_undo_later_changes() -> None:
    store = ObjectCopy()
    for name in ("changes", "goes"):
        store.put(pod(name, 1))
    before = store.versions("Pod")
    store.put(pod("changes", 9))
    store.put(pod("comes", 10))
    store.remove(pod("goes", 11))
    assert store.sweep([pod("changes", 1), pod("goes", 1)], before) == []
    versions = {each.name: version for each, version in store.versions("Pod").items()}
    assert versions == {"changes": "9", "comes": "10"}
