"""Who may write: declared or not, mode by mode, claim by claim."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from onewriter_core.api import ExclusiveTopic, ProducerClaim
from onewriter_core.authorization import (
    Action,
    Denied,
    Granted,
    PodsOf,
    Policy,
    Principal,
    RequestedProducer,
    TopicResource,
    UndeclaredTopics,
    may,
)
from onewriter_core.errors import Refused, ServerError
from onewriter_core.ids import Identity, TopicName
from onewriter_core.topic.model import AccessMode

ORDERS = TopicName.parse("persistent://shop/default/orders")
PLAIN = TopicName.parse("plain")
WRITER = Identity("writer")
NOBODY = Identity()
OPEN = UndeclaredTopics()
EVERY_MODE = list(AccessMode)


def granted(decision: Granted | Denied) -> Granted:
    if isinstance(decision, Denied):
        raise decision.error()
    return decision


def admit(
    name: TopicName,
    declared: ExclusiveTopic | None,
    claims: Iterable[ProducerClaim],
    identity: Identity,
    mode: AccessMode,
    priority: int | None,
    undeclared: UndeclaredTopics = OPEN,
    pods_of: PodsOf = lambda _claim: (),
) -> Granted:
    resource = TopicResource(name, declared, tuple(claims), pods_of, Policy(undeclared=undeclared))
    request = RequestedProducer(mode, priority)
    return granted(may(Principal(identity), Action.PRODUCE, resource, request))


def check_topic(
    name: TopicName, declared: ExclusiveTopic | None, undeclared: UndeclaredTopics
) -> None:
    resource = TopicResource(name, declared, policy=Policy(undeclared=undeclared))
    granted(may(Principal(NOBODY), Action.CREATE_TOPIC, resource))


def topic(*modes: str, require_claim: bool = True) -> ExclusiveTopic:
    access: dict[str, Any] = {"requireClaim": require_claim}
    if modes:
        access["modes"] = list(modes)
    return ExclusiveTopic.from_document(
        {
            "metadata": {"name": "orders", "namespace": "shop"},
            "spec": {"access": access},
        }
    )


def claim(
    name: str = "primary", subject: dict[str, Any] | None = None, **spec: Any
) -> ProducerClaim:
    return ProducerClaim.from_document(
        {
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {
                "topicRef": {"name": "orders"},
                "subject": subject or {"tokenSubject": "writer"},
                **spec,
            },
        }
    )


def refusal(
    declared: ExclusiveTopic | None,
    *claims: ProducerClaim,
    name: TopicName = ORDERS,
    identity: Identity = WRITER,
    mode: AccessMode = AccessMode.EXCLUSIVE,
    undeclared: UndeclaredTopics = OPEN,
) -> Refused:
    with pytest.raises(Refused) as caught:
        admit(name, declared, claims, identity, mode, None, undeclared)
    return caught.value


# Topics that nobody declared


@pytest.mark.parametrize("mode", EVERY_MODE)
def test_an_undeclared_topic_of_public_default_is_as_in_pulsar(mode: AccessMode) -> None:
    assert admit(PLAIN, None, [], NOBODY, mode, None) == Granted(0, "", may_take_over=True)


def test_an_undeclared_topic_elsewhere_does_not_exist() -> None:
    assert refusal(None).code is ServerError.TOPIC_NOT_FOUND
    there = UndeclaredTopics(namespaces=frozenset({"shop/default"}))
    assert admit(ORDERS, None, [], NOBODY, AccessMode.SHARED, None, there).claim_name == ""
    assert refusal(None, name=PLAIN, undeclared=there).code is ServerError.TOPIC_NOT_FOUND


def test_an_undeclared_topic_does_not_exist_if_declarations_are_required() -> None:
    strict = UndeclaredTopics(are_refused=True)
    assert refusal(None, name=PLAIN, undeclared=strict).code is ServerError.TOPIC_NOT_FOUND
    open_topic = topic(require_claim=False)
    admit(ORDERS, open_topic, [], NOBODY, AccessMode.EXCLUSIVE, None, strict)
    check_topic(ORDERS.with_partition(3), open_topic, strict)


def test_a_topic_that_keeps_nothing_is_not_served() -> None:
    volatile = TopicName.parse("non-persistent://public/default/x")
    assert refusal(None, name=volatile).code is ServerError.NOT_ALLOWED_ERROR


# What the topic allows to everybody


@pytest.mark.parametrize("mode", EVERY_MODE)
def test_a_mode_that_the_topic_omits_is_refused_to_all_producers(mode: AccessMode) -> None:
    words = {
        AccessMode.SHARED: "Shared",
        AccessMode.EXCLUSIVE: "Exclusive",
        AccessMode.WAIT_FOR_EXCLUSIVE: "WaitForExclusive",
        AccessMode.EXCLUSIVE_WITH_FENCING: "ExclusiveWithFencing",
    }
    others = [word for each, word in words.items() if each is not mode]
    almighty = claim(allow=["lead", "takeover"])
    refused = refusal(topic(*others), almighty, mode=mode)
    assert refused.code is ServerError.NOT_ALLOWED_ERROR
    assert words[mode] in refused.message
    admit(ORDERS, topic(words[mode]), [almighty], WRITER, mode, None)


# Claims


@pytest.mark.parametrize("mode", [AccessMode.EXCLUSIVE, AccessMode.EXCLUSIVE_WITH_FENCING])
def test_a_required_claim_must_match(mode: AccessMode) -> None:
    assert refusal(topic(), mode=mode).code is ServerError.AUTHORIZATION_ERROR
    strangers = Identity("stranger")
    refused = refusal(topic(), claim(allow=["lead", "takeover"]), identity=strangers, mode=mode)
    assert refused.code is ServerError.AUTHORIZATION_ERROR
    assert "stranger" in refused.message


@pytest.mark.parametrize("mode", EVERY_MODE)
def test_without_a_required_or_matching_claim_it_is_as_in_pulsar(mode: AccessMode) -> None:
    open_topic = topic(
        "Shared", "Exclusive", "WaitForExclusive", "ExclusiveWithFencing", require_claim=False
    )
    for claims in ([], [claim(subject={"tokenSubject": "somebody else"})]):
        assert admit(ORDERS, open_topic, claims, NOBODY, mode, None) == Granted(
            0, "", may_take_over=True
        )


@pytest.mark.parametrize(
    ("subject", "identity", "is_admitted"),
    [
        ({"tokenSubject": "writer"}, Identity("writer"), True),
        ({"tokenSubject": "writer"}, Identity("Writer"), False),
        ({"tokenSubject": "writer"}, Identity("system:serviceaccount:shop:writer"), False),
        ({"serviceAccountName": "writer"}, Identity("system:serviceaccount:shop:writer"), True),
        ({"serviceAccountName": "writer"}, Identity("writer", pod_uid="1f"), True),
        ({"serviceAccountName": "writer"}, Identity("system:serviceaccount:bank:writer"), False),
        ({"serviceAccountName": "writer"}, Identity("system:serviceaccount:shop:writer2"), False),
        ({"serviceAccountName": "writer"}, NOBODY, False),
        ({"podSelector": {"matchLabels": {"a": "b"}}}, Identity("None"), False),
        (
            {"serviceAccountName": "writer", "podSelector": {"matchLabels": {"a": "b"}}},
            Identity("writer"),
            False,
        ),
    ],
)
def test_a_claim_is_for_its_subject(
    subject: dict[str, Any], identity: Identity, is_admitted: bool
) -> None:
    claims = [claim(subject=subject)]
    if is_admitted:
        admission = admit(ORDERS, topic(), claims, identity, AccessMode.EXCLUSIVE, None)
        assert admission.claim_name == "primary"
    else:
        refused = refusal(topic(), *claims, identity=identity)
        assert refused.code is ServerError.AUTHORIZATION_ERROR


BY_LABEL = {"podSelector": {"matchLabels": {"app": "writer"}}}
POD = Identity("system:serviceaccount:shop:writer", "u1", "pod-1", "node-1")


def asked_by(identity: Identity, subject: dict[str, Any], *pods: str) -> str | ServerError:
    """The claim that admits, or the code of the refusal."""
    try:
        return admit(
            ORDERS,
            topic(),
            [claim(subject=subject)],
            identity,
            AccessMode.EXCLUSIVE,
            None,
            pods_of=lambda _claim: frozenset(pods),
        ).claim_name
    except Refused as refused:
        return refused.code


@pytest.mark.parametrize(
    ("identity", "subject", "pods", "outcome"),
    [
        (POD, BY_LABEL, ["u1"], "primary"),
        (POD, BY_LABEL | {"serviceAccountName": "writer"}, ["u1"], "primary"),
        (POD, BY_LABEL | {"serviceAccountName": "reader"}, ["u1"], ServerError.AUTHORIZATION_ERROR),
        # Whoever resolves the selector may not have heard of the pod yet: come again.
        (POD, BY_LABEL, ["u2"], ServerError.SERVICE_NOT_READY),
        (POD, BY_LABEL, [], ServerError.SERVICE_NOT_READY),
        (POD, BY_LABEL | {"serviceAccountName": "reader"}, [], ServerError.AUTHORIZATION_ERROR),
        # Another namespace's pod is never selected, and neither is who is no pod.
        (
            Identity("system:serviceaccount:bank:writer", "u1"),
            BY_LABEL,
            ["u1"],
            ServerError.AUTHORIZATION_ERROR,
        ),
        (Identity("writer"), BY_LABEL, ["u1", ""], ServerError.AUTHORIZATION_ERROR),
        (NOBODY, BY_LABEL, ["u1", ""], ServerError.AUTHORIZATION_ERROR),
    ],
)
def test_a_pod_selector_is_for_the_pods_it_is_known_to_select(
    identity: Identity, subject: dict[str, Any], pods: list[str], outcome: str | ServerError
) -> None:
    assert asked_by(identity, subject, *pods) == outcome


def test_a_claim_that_names_a_mode_allows_that_mode() -> None:
    waiting = claim(mode="WaitForExclusive")
    admit(ORDERS, topic(), [waiting], WRITER, AccessMode.WAIT_FOR_EXCLUSIVE, None)
    refused = refusal(topic(), waiting, mode=AccessMode.EXCLUSIVE)
    assert refused.code is ServerError.AUTHORIZATION_ERROR
    assert "primary allows mode WaitForExclusive only" in refused.message


@pytest.mark.parametrize("require_claim", [True, False])
def test_a_matching_claim_must_allow_the_takeover(require_claim: bool) -> None:
    declared = topic(require_claim=require_claim)
    modest, mighty = claim(), claim(allow=["lead", "takeover"])
    fencing = AccessMode.EXCLUSIVE_WITH_FENCING
    refused = refusal(declared, modest, mode=fencing)
    assert refused.code is ServerError.AUTHORIZATION_ERROR
    assert "does not allow to take over" in refused.message
    assert admit(ORDERS, declared, [mighty], WRITER, fencing, None).may_take_over
    exclusive = AccessMode.EXCLUSIVE
    assert not admit(ORDERS, declared, [modest], WRITER, exclusive, None).may_take_over
    assert admit(ORDERS, declared, [mighty], WRITER, exclusive, None).may_take_over


def test_of_several_claims_one_that_admits_is_enough_and_the_highest_priority_counts() -> None:
    claims = [
        claim("low", priority=1, defaultPriority=1),
        claim("other-mode", priority=9, defaultPriority=9, mode="Exclusive"),
        claim("b-high", priority=5, defaultPriority=5),
        claim("a-high", priority=5, defaultPriority=5),
    ]
    waiting = AccessMode.WAIT_FOR_EXCLUSIVE
    for order in (claims, claims[::-1]):
        admission = admit(ORDERS, topic(), order, WRITER, waiting, None)
        assert admission == Granted(5, "a-high", may_take_over=False)
    refused = refusal(topic(), *claims, mode=AccessMode.EXCLUSIVE_WITH_FENCING)
    assert refused.message.count("does not allow to take over") == 4


# Priority


def test_a_priority_counts_among_waiters_only() -> None:
    capped = claim(priority=10, defaultPriority=10)
    for mode in EVERY_MODE:
        expected = 7 if mode is AccessMode.WAIT_FOR_EXCLUSIVE else 0
        assert admit(PLAIN, None, [], WRITER, mode, 7).priority == expected
        if mode in topic().spec.access.modes and mode is not AccessMode.EXCLUSIVE_WITH_FENCING:
            assert admit(ORDERS, topic(), [capped], WRITER, mode, 7).priority == expected


@pytest.mark.parametrize(
    ("requested", "in_effect"), [(None, 3), (0, 0), (10, 10), (11, 10), (-4, -4)]
)
def test_a_claim_caps_and_defaults_the_priority(requested: int | None, in_effect: int) -> None:
    capped = claim(priority=10, defaultPriority=3)
    admission = admit(ORDERS, topic(), [capped], WRITER, AccessMode.WAIT_FOR_EXCLUSIVE, requested)
    assert admission.priority == in_effect


def test_no_refusal_contains_the_name_of_an_error_that_clients_look_for() -> None:
    refusals = [
        refusal(None),
        refusal(None, undeclared=UndeclaredTopics(are_refused=True)),
        refusal(None, name=TopicName.parse("non-persistent://a/b/c")),
        refusal(topic(), mode=AccessMode.SHARED),
        refusal(topic()),
        refusal(topic(), claim(), mode=AccessMode.EXCLUSIVE_WITH_FENCING),
    ]
    names = [error.name.title().replace("_", "") for error in ServerError]
    assert "ProducerFenced" in names
    for refused in refusals:
        assert not [name for name in names if name in refused.message]
