"""Tenants, namespaces and clusters in the store's settings, shared by two brokers."""

from __future__ import annotations

import pytest

from onewriter_broker.auth.authorization import Authorization
from onewriter_broker.log.store.keys import SETTINGS
from onewriter_broker.namespaces import (
    POLICY_BYTES_MAX,
    Conflict,
    Invalid,
    NamespaceMissing,
    Namespaces,
)
from onewriter_broker.settings import Settings
from onewriter_core.api.manifests import DesiredState
from onewriter_core.authorization import Action
from onewriter_core.errors import Refused, ServerError
from onewriter_core.ids import Identity, TopicName
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore

INFO: dict[str, object] = {"adminRoles": [], "allowedClusters": ["standalone"]}


def namespaces_of(server: FakeServer, *configured: str) -> Namespaces:
    return Namespaces(FakeLogStore(server.resolve), configured or ("public/default",))


async def test_configured_namespaces_always_exist(server: FakeServer) -> None:
    here = namespaces_of(server, " public/default ", "shop/eu", "")
    assert here.tenants() == ["public", "shop"]
    assert here.of_tenant("shop") == ["shop/eu"]
    with pytest.raises(Conflict):
        await here.delete("shop/eu")
    with pytest.raises(Conflict):
        await here.create("shop/eu", {})
    with pytest.raises(Conflict):
        await here.delete_tenant("public")


async def test_a_star_selects_every_namespace(server: FakeServer) -> None:
    everywhere = namespaces_of(server, "*")
    assert "any/thing" in everywhere
    assert everywhere.tenants() == ["public"]


async def test_a_namespace_made_by_one_broker_is_used_through_another(
    server: FakeServer,
) -> None:
    here, there = namespaces_of(server), namespaces_of(server)
    rights = Authorization(Settings(), there, DesiredState)
    topic = TopicName.parse("persistent://shop/eu/orders")
    await here.create_tenant("shop", INFO)
    await here.create("shop/eu", {})
    with pytest.raises(Refused) as refused:
        rights.require(Identity(), Action.CREATE_TOPIC, topic)
    assert refused.value.code is ServerError.TOPIC_NOT_FOUND
    await there.refresh()
    rights.require(Identity(), Action.CREATE_TOPIC, topic)
    await here.delete("shop/eu")
    await there.refresh()
    with pytest.raises(Refused):
        rights.require(Identity(), Action.CREATE_TOPIC, topic)


async def test_two_brokers_do_not_undo_each_others_policies(server: FakeServer) -> None:
    here, there = namespaces_of(server), namespaces_of(server)
    await here.set_policy("public/default", "retention", {"retentionSizeInMB": 5})
    await there.set_policy("public/default", "deduplication", value=True)
    await here.refresh()
    assert here.policies("public/default") == {
        "deduplication": True,
        "retention": {"retentionSizeInMB": 5},
    }
    await there.remove_policy("public/default", "retention")
    await here.refresh()
    assert here.policy("public/default", "retention") is None


async def test_a_deleted_namespace_leaves_no_policy_for_the_next_of_its_name(
    server: FakeServer,
) -> None:
    here = namespaces_of(server)
    await here.create_tenant("shop", INFO)
    await here.create("shop/eu", {"bundles": {"numBundles": 4}})
    await here.set_policy("shop/eu", "messageTTL", 60)
    assert here.created_with("shop/eu") == {"bundles": {"numBundles": 4}}
    await here.delete("shop/eu")
    await here.create("shop/eu", {})
    assert here.policies("shop/eu") == {}


async def test_a_namespace_whose_name_begins_like_another_keeps_its_policies(
    server: FakeServer,
) -> None:
    here = namespaces_of(server)
    await here.create_tenant("shop", INFO)
    await here.create("shop/eu", {})
    await here.create("shop/eu-west", {})
    await here.set_policy("shop/eu-west", "messageTTL", 60)
    await here.delete("shop/eu")
    assert here.policy("shop/eu-west", "messageTTL") == 60


async def test_bad_names_and_values_are_refused(server: FakeServer) -> None:
    here = namespaces_of(server)
    for name in ("", "a b", "a$", "x" * 129):
        with pytest.raises(Invalid):
            await here.create_tenant(name, INFO)
    with pytest.raises(Invalid):
        await here.create_tenant("shop", {"allowedClusters": "standalone"})
    with pytest.raises(Invalid):
        await here.set_policy("public/default", "retention", "x" * POLICY_BYTES_MAX)
    with pytest.raises(NamespaceMissing):
        await here.set_policy("no/where", "retention", 1)
    with pytest.raises(NamespaceMissing):
        await here.create("nobody/eu", {})
    assert here.tenants() == ["public"]


async def test_clusters_beside_the_one_that_is_always_there(server: FakeServer) -> None:
    here = namespaces_of(server)
    await here.put_cluster("west", {"serviceUrl": "http://west"}, is_new=True)
    assert here.clusters() == ["standalone", "west"]
    assert here.cluster("standalone") is None
    with pytest.raises(Conflict):
        await here.put_cluster("west", {}, is_new=True)
    with pytest.raises(NamespaceMissing):
        await here.put_cluster("east", {}, is_new=False)
    with pytest.raises(Conflict):
        await here.delete_cluster("standalone")
    await here.delete_cluster("west")
    with pytest.raises(NamespaceMissing):
        here.cluster("west")


@pytest.mark.parametrize("text", ["", "foreign", "{", "[" * 100_000])
async def test_a_policy_that_no_broker_wrote_counts_as_not_set(
    server: FakeServer, text: str
) -> None:
    here, there = namespaces_of(server), namespaces_of(server)
    await here.create_tenant("shop", INFO)
    await here.create("shop/eu", {"deduplicationEnabled": True})
    await here.set_policy("shop/eu", "deduplication", False)
    await here.set_policy("shop/eu", "compactionThreshold", 7)
    await there.known()
    for field in ("policy/shop/eu/deduplication", "tenant/foreign", "namespace/foreign/one"):
        server.primary.run("HSET", SETTINGS, field, text)
    for each in (here, there, namespaces_of(server)):
        await each.refresh()
        assert each.effective("shop/eu", "deduplication", "deduplicationEnabled") is True
        assert each.policies("shop/eu") == {"compactionThreshold": 7}
        assert each.tenants() == ["public", "shop"]
        assert "foreign/one" not in each
    version = there.version
    await there.refresh()
    assert there.version == version
    await there.set_policy("shop/eu", "deduplication", False)
    await here.refresh()
    assert here.policy("shop/eu", "deduplication") is False
