"""The object that counts for a topic: by tenant, and by the first namespace of its log."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onewriter_core.api.tenancy import Tenancy, read_exceptions, written_exceptions
from onewriter_core.kubernetes.kinds import Key
from onewriter_operator.configuration import OptIn, TenancyOptions
from onewriter_operator.declarations import Declarations
from onewriter_operator.store import ObjectCopy

Json = dict[str, Any]

LEDGER = "persistent://shop/default/ledger"


def topic(namespace: str, name: str, *, made: int = 1, **spec: Any) -> Json:
    about = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-{namespace}-{name}",
        "creationTimestamp": f"2026-01-01T00:00:{made:02}Z",
        "generation": 1,
    }
    return {
        "apiVersion": "onewriter.dev/v1alpha1",
        "kind": "ExclusiveTopic",
        "metadata": about,
        "spec": {"topic": LEDGER} | spec,
        "status": {"observedGeneration": 1},
    }


def declared(tenancy: Tenancy, *documents: Json) -> Declarations:
    store = ObjectCopy()
    found = Declarations(store, tenancy)
    for document in documents:
        store.put(document)
    return found


def words(declarations: Declarations, *keys: str) -> list[str]:
    split = [key.partition("/") for key in keys]
    return [
        declarations.acceptance(Key("ExclusiveTopic", namespace, name)).reason
        for namespace, _, name in split
    ]


def passed_on(declarations: Declarations) -> list[str]:
    body = json.loads(declarations.compose().body)
    return [
        f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in body["topics"]
    ]


STRICT = Tenancy(is_enforced=True)
SHARED = Tenancy(is_enforced=True, exceptions={"rival": frozenset({"shop"})})
OLDER, YOUNGER = topic("rival", "heir", made=1), topic("shop", "ledger", made=2)


def test_an_object_of_a_foreign_tenant_counts_for_nothing_however_old() -> None:
    found = declared(STRICT, OLDER, YOUNGER)
    assert words(found, "rival/heir", "shop/ledger") == ["NotThisTenant", "Accepted"]
    assert passed_on(found) == ["shop/ledger"]
    acceptance = found.acceptance(Key("ExclusiveTopic", "rival", "heir"))
    assert "does not belong to namespace rival" in acceptance.message


def test_without_the_rule_the_older_counts_as_ever() -> None:
    found = declared(Tenancy(), OLDER, YOUNGER)
    assert words(found, "rival/heir", "shop/ledger") == ["Accepted", "ResourceConflict"]


def test_the_first_namespace_of_a_log_counts_and_not_the_older_object() -> None:
    found = declared(SHARED, OLDER, YOUNGER)
    assert words(found, "rival/heir", "shop/ledger") == ["Accepted", "ResourceConflict"]
    assert found.declared_by(LEDGER, "shop")
    assert words(found, "rival/heir", "shop/ledger") == ["DeclaredElsewhere", "Accepted"]
    assert not found.declared_by(LEDGER, "shop"), "no news"
    assert found.declared_by(LEDGER, "rival"), "an administrator reassigned it"
    assert words(found, "rival/heir", "shop/ledger") == ["Accepted", "DeclaredElsewhere"]
    assert found.declared_by(LEDGER, ""), "its log was deleted"
    assert words(found, "rival/heir", "shop/ledger") == ["Accepted", "ResourceConflict"]


def test_the_first_namespace_keeps_the_topic_when_its_object_is_gone() -> None:
    found = declared(SHARED, OLDER)
    found.declared_by(LEDGER, "shop")
    assert words(found, "rival/heir") == ["DeclaredElsewhere"]
    assert passed_on(found) == []
    message = found.acceptance(Key("ExclusiveTopic", "rival", "heir")).message
    assert "kubectl onewriter reassign heir --to rival" in message


@pytest.mark.parametrize(
    ("namespace", "tenant", "is_allowed"),
    [
        ("shop", "shop", True),
        ("shop", "public", False),
        ("default", "public", True),
        ("default", "default", True),
        ("public", "public", False),
        ("rival", "shop", True),
        ("rival", "rival", True),
        ("rival", "bank", False),
        ("shop", "rival", False),
    ],
)
def test_the_rule(namespace: str, tenant: str, is_allowed: bool) -> None:
    assert SHARED.allows(namespace, tenant) is is_allowed
    assert Tenancy().allows(namespace, tenant)


def test_exceptions_survive_being_written() -> None:
    exceptions = {"rival": frozenset({"shop", "bank"}), "default": frozenset({"a.b"})}
    assert read_exceptions(written_exceptions(exceptions)) == exceptions
    assert read_exceptions("") == {}
    assert read_exceptions(" a=b , a=c ") == {"a": frozenset({"b", "c"})}
    for wrong in ("shop", "=x", "shop=", "shop=+"):
        with pytest.raises(ValueError, match="NAMESPACE=TENANT"):
            read_exceptions(wrong)


def test_options_make_the_rule() -> None:
    options = TenancyOptions.from_document(
        {
            "allow": [
                {"namespace": "rival", "tenants": ["shop"]},
                {"namespace": "rival", "tenants": ["x"]},
            ]
        }
    )
    assert options.rule == Tenancy(is_enforced=True, exceptions={"rival": frozenset({"shop", "x"})})
    assert options.rule.exceptions == {"rival": {"shop", "x"}}


def test_a_right_is_opted_into_for_all_or_for_some() -> None:
    assert not OptIn().covers("shop")
    assert OptIn(enabled=True).covers("shop")
    some = OptIn(enabled=True, namespaces=("shop",))
    assert (some.covers("shop"), some.covers("rival")) == (True, False)
