"""Who may do what: roles, consumers, owners, and what strangers are told."""

from __future__ import annotations

from typing import Any

import pytest

from onewriter_core.api import ExclusiveTopic, ProducerClaim
from onewriter_core.authorization import (
    INSTALLATION,
    Action,
    ConsumersDefault,
    Denied,
    Granted,
    NamespaceResource,
    OwnedResource,
    Policy,
    Principal,
    Resource,
    Role,
    RoleSubjects,
    TopicResource,
    UndeclaredTopics,
    may,
    subjects_of,
)
from onewriter_core.errors import ServerError
from onewriter_core.ids import Identity, TopicName

NAME = TopicName.parse("persistent://shop/default/orders")
NAMESPACE = Policy(ConsumersDefault.NAMESPACE, UndeclaredTopics(are_refused=True))
SHOP = Principal(Identity("system:serviceaccount:shop:web"))
RIVAL = Principal(Identity("system:serviceaccount:rival:web"))
ALICE = Principal(Identity("alice"))
ANONYMOUS = Principal(Identity())
ADMINISTRATOR = Principal(Identity("root"), frozenset({Role.ADMINISTRATOR}))
OBSERVER = Principal(Identity("prometheus"), frozenset({Role.OBSERVER}))
PIPELINE = Principal(Identity("offload"), frozenset({Role.PIPELINE}))


def topic(
    consumers: dict[str, Any] | None = None,
    *claims: ProducerClaim,
    require_claim: bool = True,
    policy: Policy = NAMESPACE,
) -> TopicResource:
    access: dict[str, Any] = {"requireClaim": require_claim}
    if consumers is not None:
        access["consumers"] = consumers
    declaration = ExclusiveTopic.from_document(
        {"metadata": {"name": "orders", "namespace": "shop"}, "spec": {"access": access}}
    )
    return TopicResource(NAME, declaration, claims, policy=policy)


def claim(subject: str) -> ProducerClaim:
    return ProducerClaim.from_document(
        {
            "metadata": {"name": "writer", "namespace": "shop"},
            "spec": {"topicRef": {"name": "orders"}, "subject": {"tokenSubject": subject}},
        }
    )


def is_granted(principal: Principal, action: Action, resource: Resource) -> bool:
    return isinstance(may(principal, action, resource), Granted)


def denied(principal: Principal, action: Action, resource: Resource) -> Denied:
    decision = may(principal, action, resource)
    assert isinstance(decision, Denied), decision
    return decision


# Roles


def test_without_authentication_and_named_subjects_everybody_has_every_role() -> None:
    assert RoleSubjects().principal(Identity()).roles == frozenset(Role)


@pytest.mark.parametrize(
    "roles",
    [
        RoleSubjects(authentication_required=True),
        RoleSubjects(administrators=frozenset({"root"})),
        RoleSubjects(observers=frozenset({"root"})),
        RoleSubjects(pipelines=frozenset({"root"})),
    ],
)
def test_otherwise_a_role_is_for_its_subjects(roles: RoleSubjects) -> None:
    assert roles.principal(Identity()).roles == frozenset()
    assert roles.principal(Identity("alice")).roles == frozenset()


def test_one_subject_may_have_several_roles() -> None:
    roles = RoleSubjects(frozenset({"root", "a"}), frozenset({"a"}), frozenset({"b"}))
    assert roles.principal(Identity("a")).roles == {Role.ADMINISTRATOR, Role.OBSERVER}
    assert roles.principal(Identity("b")).roles == {Role.PIPELINE}
    assert subjects_of(" a, b ,,") == {"a", "b"}


@pytest.mark.parametrize(
    ("subject", "namespace"),
    [
        ("system:serviceaccount:shop:web", "shop"),
        ("system:serviceaccount:shop:", None),
        ("system:serviceaccount::web", None),
        ("system:serviceaccount:shop", None),
        ("shop:web", None),
        ("", None),
    ],
)
def test_the_namespace_of_a_service_account(subject: str, namespace: str | None) -> None:
    assert Principal(Identity(subject)).namespace == namespace


# Writing without a claim


@pytest.mark.parametrize("action", [Action.PRODUCE, Action.CREATE_SCHEMA, Action.OWN])
def test_without_a_required_claim_a_namespaces_topic_is_written_by_its_tenant(
    action: Action,
) -> None:
    unclaimed = topic(require_claim=False)
    assert is_granted(SHOP, action, unclaimed)
    for unauthorized in (RIVAL, ALICE, ANONYMOUS, ADMINISTRATOR, OBSERVER, PIPELINE):
        assert denied(unauthorized, action, unclaimed).right is action
    assert not is_granted(SHOP, action, topic())


def test_named_consumers_write_where_no_claim_is_required() -> None:
    named = topic({"subjects": ["alice"]}, require_claim=False)
    assert is_granted(ALICE, Action.PRODUCE, named)
    assert is_granted(SHOP, Action.PRODUCE, named)
    assert not is_granted(RIVAL, Action.PRODUCE, named)
    assert is_granted(RIVAL, Action.PRODUCE, topic({"everyone": True}, require_claim=False))


def test_an_open_default_lets_all_clients_write_without_a_required_claim() -> None:
    named = topic({"subjects": ["alice"]}, require_claim=False, policy=Policy())
    assert is_granted(RIVAL, Action.PRODUCE, named)


# Reading

READING = [Action.CONSUME, Action.CHANGE_SUBSCRIPTION, Action.OBSERVE, Action.LOOK_UP, Action.GUARD]


@pytest.mark.parametrize("action", READING)
def test_by_default_the_topics_own_namespace_reads(action: Action) -> None:
    assert is_granted(SHOP, action, topic())
    for unauthorized in (RIVAL, ALICE, ANONYMOUS):
        assert denied(unauthorized, action, topic()).code is ServerError.AUTHORIZATION_ERROR
    everyone = Policy(ConsumersDefault.EVERYONE)
    assert is_granted(ANONYMOUS, action, topic(policy=everyone))


@pytest.mark.parametrize("action", READING)
def test_named_consumers_alone_read(action: Action) -> None:
    named = {"namespaces": ["rival"], "subjects": ["alice"]}
    for policy in (NAMESPACE, Policy(ConsumersDefault.EVERYONE)):
        assert is_granted(RIVAL, action, topic(named, policy=policy))
        assert is_granted(ALICE, action, topic(named, policy=policy))
        denied(SHOP, action, topic(named, policy=policy))
        denied(ANONYMOUS, action, topic(named, policy=policy))
    assert is_granted(ANONYMOUS, action, topic({"everyone": True}))
    denied(SHOP, action, topic({}))


def test_a_claim_allows_reading() -> None:
    assert is_granted(ALICE, Action.CONSUME, topic({}, claim("alice")))
    denied(RIVAL, Action.CONSUME, topic({}, claim("alice")))


def test_roles_that_read() -> None:
    for principal in (ADMINISTRATOR, PIPELINE):
        for action in READING:
            assert is_granted(principal, action, topic({}))
    assert is_granted(OBSERVER, Action.OBSERVE, topic({}))
    assert is_granted(OBSERVER, Action.LOOK_UP, topic({}))
    denied(OBSERVER, Action.CONSUME, topic({}))
    denied(OBSERVER, Action.CHANGE_SUBSCRIPTION, topic({}))


def test_a_refusal_names_the_right_and_hides_the_declaration_from_unauthorized_clients() -> None:
    refused = denied(ALICE, Action.CONSUME, topic({"subjects": ["bob"], "namespaces": ["bank"]}))
    assert "alice lacks the right consume on persistent://shop/default/orders" in refused.reason
    assert "bob" not in refused.reason
    assert "subject bob, namespace bank" in refused.detail


@pytest.mark.parametrize("action", [*READING, Action.PRODUCE, Action.OWN, Action.CREATE_SCHEMA])
def test_an_unauthorized_client_cannot_detect_a_topic_of_another_namespace(action: Action) -> None:
    missing = TopicResource(NAME, policy=NAMESPACE)
    there, away = denied(RIVAL, action, topic()), denied(RIVAL, action, missing)
    assert (there.code, there.reason) == (away.code, away.reason)
    expected = ServerError.TOPIC_NOT_FOUND
    assert denied(SHOP, Action.PRODUCE, missing).code is expected


# Undeclared topics


def test_an_undeclared_topic_belongs_to_the_namespace_of_its_tenant() -> None:
    policy = Policy(
        ConsumersDefault.NAMESPACE,
        UndeclaredTopics(namespaces=frozenset({"shop/default", "public/default"})),
    )
    own = TopicResource(NAME, policy=policy)
    public = TopicResource(TopicName.parse("x"), policy=policy)
    for action in (Action.PRODUCE, Action.CONSUME, Action.CREATE_TOPIC, Action.OWN):
        assert is_granted(SHOP, action, own)
        denied(RIVAL, action, own)
        denied(SHOP, action, public)
        assert is_granted(Principal(Identity("system:serviceaccount:default:x")), action, public)


# Owning


def test_an_owner_must_be_allowed_to_write_and_to_read() -> None:
    open_topic = topic(require_claim=False)
    assert is_granted(SHOP, Action.OWN, open_topic)
    denied(RIVAL, Action.OWN, open_topic)
    denied(SHOP, Action.OWN, topic())
    assert is_granted(ALICE, Action.OWN, topic(None, claim("alice")))


def test_a_name_belongs_to_the_subject_that_owned_it_first() -> None:
    free, taken = OwnedResource("lock"), OwnedResource("lock", first_subject="alice")
    assert is_granted(RIVAL, Action.OWN, free)
    assert is_granted(ALICE, Action.OWN, taken)
    assert is_granted(ADMINISTRATOR, Action.OWN, taken)
    assert "alice" not in denied(RIVAL, Action.OWN, taken).reason


# Administering


@pytest.mark.parametrize("resource", [INSTALLATION, NamespaceResource("shop/default", NAMESPACE)])
def test_only_administrators_change_tenants_and_namespaces(resource: Resource) -> None:
    for action in (Action.ADMINISTER_NAMESPACE, Action.ADMINISTER_INSTALLATION):
        assert is_granted(ADMINISTRATOR, action, resource)
        for other in (OBSERVER, PIPELINE, ALICE):
            denied(other, action, resource)
    assert is_granted(OBSERVER, Action.OBSERVE, resource)
    denied(RIVAL, Action.OBSERVE, resource)


def test_a_topic_is_administered_by_administrators_and_trimmed_by_the_pipeline_too() -> None:
    assert is_granted(ADMINISTRATOR, Action.ADMINISTER_TOPIC, topic())
    assert is_granted(PIPELINE, Action.TRIM, topic())
    denied(PIPELINE, Action.ADMINISTER_TOPIC, topic())
    denied(SHOP, Action.TRIM, topic())


def test_no_role_writes_without_a_claim() -> None:
    for principal in (ADMINISTRATOR, PIPELINE, OBSERVER):
        denied(principal, Action.PRODUCE, topic())
        denied(principal, Action.CREATE_SCHEMA, topic())


def test_every_action_on_every_resource_is_decided() -> None:
    resources: list[Resource] = [
        topic(), INSTALLATION, NamespaceResource("shop/default"), OwnedResource("lock")
    ]  # fmt: skip
    for action in Action:
        for resource in resources:
            for principal in (ADMINISTRATOR, ANONYMOUS):
                assert isinstance(may(principal, action, resource), Granted | Denied)
