"""The plans as tables: facts from YAML in, actions and status out."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import TypeAdapter

from onewriter_core.api.status import ExclusiveTopicStatus, FencedPod, ProducerClaimStatus
from onewriter_core.kubernetes.kinds import SERVICE, SLICE
from onewriter_core.kubernetes.objects import parse, parse_topic, parse_topic_status
from onewriter_core.topic_view import TopicView, parse_view
from onewriter_operator.conditions import CLAIM_REASONS, TOPIC_REASONS
from onewriter_operator.plan import leader
from onewriter_operator.plan.actions import Apply, EmitEvent, EventReason, RequeueAfter
from onewriter_operator.plan.claim import plan_claim
from onewriter_operator.plan.difference import difference, digest
from onewriter_operator.plan.facts import ClaimFacts, PodFacts, TopicFacts
from onewriter_operator.plan.topic import Plan, plan_topic

Json = dict[str, Any]

TOPIC_FACTS = TypeAdapter(TopicFacts)
CLAIM_FACTS = TypeAdapter(ClaimFacts)

HERE = Path(__file__).parent
TOPIC = "persistent://shop/default/orders"
SILENT: Json = {
    "epoch": 3,
    "transitions": [
        {
            "epoch": 3,
            "cause": "Silent",
            "at": "2026-01-01T00:00:00Z",
            "holder": {"producerName": "w1"},
            "previous": {"podUID": "u0", "pod": "writer-0", "claim": "primary", "epoch": 2},
        }
    ],
}
DOCUMENT: Json = {
    "apiVersion": "onewriter.dev/v1alpha1",
    "kind": "ExclusiveTopic",
    "metadata": {
        "name": "orders",
        "namespace": "shop",
        "uid": "t1",
        "generation": 1,
        "resourceVersion": "5",
    },
    "spec": {},
    "status": {"observedGeneration": -1},
}


def cases(name: str) -> list[Any]:
    found = yaml.safe_load((HERE / name).read_text())
    return [pytest.param(case, id=case["name"]) for case in found]


def merged(base: Json, more: Json) -> Json:
    found = copy.deepcopy(base)
    for name, value in more.items():
        is_mapping = isinstance(value, dict) and isinstance(found.get(name), dict)
        found[name] = merged(found[name], value) if is_mapping else value
    return found


def with_status(document: Json, before: Json | None) -> Json:
    if before is None:
        return document
    conditions = [
        {
            "type": each[0],
            "status": each[1],
            "reason": each[2],
            "message": each[3],
            "lastTransitionTime": each[4] if len(each) > 4 else "1970-01-01T00:00:01Z",
        }
        for each in before.get("conditions", ())
    ]
    return document | {"status": before | {"conditions": conditions}}


def parsed(view: Json | None) -> TopicView | None:
    return None if view is None else parse_view(view)


def completed(view: Any) -> Any:
    """A broker's report with the fields that each report has."""
    if view is None:
        return None
    view = dict(SILENT) if view == "silent" else view
    view = {"state": "Held", "served": True, "waitingReason": "", "broker": "broker-0", **view}
    for name in ("holders", "waiters", "sharedProducers", "transitions", "slots"):
        view.setdefault(name, [])
    view.setdefault("epoch", 3)
    view["holder"] = view["holders"][0] if view["holders"] else None
    view["waiting"] = len(view["waiters"])
    for each in view["transitions"]:
        each.setdefault("kind", "grant")
        each["at"] = (
            each["at"].replace("T", "2026-01-01T00:00:00Z") if each["at"] == "T" else each["at"]
        )
    return view


def topic_facts(case: Json) -> TopicFacts:
    given = dict(case["facts"])
    document = with_status(merged(DOCUMENT, given.pop("document", {})), case.get("before"))
    there = given.pop("there", None)
    view = completed(given.pop("view", None))
    if view is not None and "waiters" in given:
        view["waiters"] = given.pop("waiters")
    facts: Json = {
        "now": 1000.0,
        "acceptance": {"topic": TOPIC},
        "applied": {"brokers": 1, "is_everywhere": True},
        "stored": {"exists": False},
        **given,
        "declared": parse(document),
        "view": parsed(view),
    }
    for name in ("slices", "obsolete", "foreign_slices"):
        if name in facts:
            facts[name] = tuple(map(parse, facts[name]))
    if facts.get("service") is not None:
        facts["service"] = parse(facts["service"])
    if facts.get("fenced_before") is not None:
        before = parse_topic_status({"fencedPods": facts["fenced_before"]})
        facts["fenced_before"] = before.fenced_pods
    found = TOPIC_FACTS.validate_python(facts)
    return found if there is None else with_dependents(found, {} if there is True else there)


def with_dependents(facts: TopicFacts, changed: Json) -> TopicFacts:
    """The leader Service as this process wrote it, with the outside changes of the case."""
    wanted = facts.declared.spec.leader_service
    assert wanted is not None
    epoch = 0 if facts.view is None else facts.view.epoch
    holder = None if facts.view is None else facts.view.holder
    pod = facts.pods.get(holder.pod_uid, PodFacts()) if holder else None
    objects = {
        SERVICE.kind: leader.service(facts.declared, wanted, epoch),
        SLICE.kind: leader.endpoints(facts.declared, wanted, epoch, holder, pod),
    }
    written = {f"{kind}/{each['metadata']['name']}": digest(each) for kind, each in objects.items()}
    there: dict[str, Json | None] = {}
    for kind, each in objects.items():
        stored = merged(each, {"metadata": {"resourceVersion": "7", "uid": kind}})
        change = changed.get(kind, {})
        there[kind] = None if change is None else merged(stored, change)
    service, endpoints = (None if each is None else parse(each) for each in there.values())
    slices = () if endpoints is None else (endpoints,)
    return dataclasses.replace(facts, service=service, slices=slices, written_digests=written)


def claim_facts(case: Json) -> ClaimFacts:
    given = dict(case["facts"])
    base = DOCUMENT | {
        "kind": "ProducerClaim",
        "metadata": DOCUMENT["metadata"] | {"name": "primary"},
        "spec": {"topicRef": {"name": "orders"}, "subject": {"serviceAccountName": "writer"}},
    }
    document = with_status(merged(base, given.pop("document", {})), case.get("before"))
    view = completed(given.pop("view", None))
    topic = given.pop("topic", {})
    many = given.pop("many_waiters", 0)
    if many:
        waiters = [{"producerName": f"w{n}", "claim": "primary", "place": n} for n in range(many)]
        view = completed({"waiters": waiters})
    facts: Json = {
        "now": 1000.0,
        "acceptance": {"topic": TOPIC},
        "applied": {"brokers": 1, "is_everywhere": True},
        **given,
        "topic": None if topic is None else parse(merged(DOCUMENT, topic)),
        "declared": parse(document),
        "view": parsed(view),
    }
    return CLAIM_FACTS.validate_python(facts)


def check(case: Json, plan: Plan, model: Any) -> None:
    if "actions" in case:
        check_actions(case["actions"], plan)
    if "visit" in case:
        visits = [each.after_seconds for each in plan.actions if isinstance(each, RequeueAfter)]
        assert visits
        assert min(visits) == pytest.approx(case["visit"])
    if "events" in case:
        wanted = {name for name in case["events"] if not name.endswith("-")}
        optional = {name[:-1] for name in case["events"] if name.endswith("-")}
        reported = {each.reason for each in plan.actions if isinstance(each, EmitEvent)}
        assert reported - optional == wanted
    if "status" in case:
        assert plan.status is case["status"]
        return
    assert plan.status is not None
    model.from_document(plan.status)  # what is written is what the definition allows
    found = {each["type"]: each for each in plan.status["conditions"]}
    for kind, expected in case.get("conditions", {}).items():
        assert f"{found[kind]['status']}/{found[kind]['reason']}" == expected, found[kind][
            "message"
        ]
    for kind, message in case.get("message", {}).items():
        assert found[kind]["message"] == message
    for name, value in case.get("expect", {}).items():
        assert plan.status.get(name) == value, name
    for name in case.get("absent", ()):
        assert name not in plan.status
    if "fenced" in case:
        pods = [[each["podUID"], each["outcome"]] for each in plan.status.get("fencedPods", ())]
        assert pods == case["fenced"]


def check_actions(wanted: list[Any], plan: Plan) -> None:
    found = [each for each in plan.actions if not isinstance(each, EmitEvent | RequeueAfter)]
    names = [each if isinstance(each, str) else next(iter(each)) for each in wanted]
    assert [type(each).__name__ for each in found] == names
    for action, expected in zip(found, wanted, strict=True):
        if isinstance(expected, str):
            continue
        fields = (
            dataclasses.asdict(action)
            if not isinstance(action, Apply)
            else {
                "document": action.document,
                "version": action.version,
            }
        )
        fields = {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}
        assert difference(next(iter(expected.values())), fields) == ""


@pytest.mark.parametrize(
    "case", [*cases("topics.yaml"), *cases("leaders.yaml"), *cases("fenced.yaml")]
)
def test_exclusive_topic(case: Json) -> None:
    check(case, plan_topic(topic_facts(case)), ExclusiveTopicStatus)


@pytest.mark.parametrize("case", cases("claims.yaml"))
def test_producer_claim(case: Json) -> None:
    check(case, plan_claim(claim_facts(case)), ProducerClaimStatus)


def reasons_of(plans: list[Plan]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for plan in plans:
        for condition in (plan.status or {}).get("conditions", ()):
            found.setdefault(condition["type"], set()).add(condition["reason"])
    return found


def loaded(*names: str) -> list[Json]:
    return [case for name in names for case in yaml.safe_load((HERE / name).read_text())]


def test_every_condition_and_reason_of_a_topic_is_reached() -> None:
    files = ("topics.yaml", "leaders.yaml", "fenced.yaml")
    plans = [plan_topic(topic_facts(case)) for case in loaded(*files)]
    assert reasons_of(plans) == {kind: set(reasons) for kind, reasons in TOPIC_REASONS.items()}


def test_every_condition_and_reason_of_a_claim_is_reached() -> None:
    plans = [plan_claim(claim_facts(case)) for case in loaded("claims.yaml")]
    assert reasons_of(plans) == {kind: set(reasons) for kind, reasons in CLAIM_REASONS.items()}


def test_every_outcome_and_event_is_reached() -> None:
    plans = [
        plan_topic(topic_facts(case))
        for case in loaded("topics.yaml", "leaders.yaml", "fenced.yaml")
    ]
    pods = [pod for plan in plans for pod in (plan.status or {}).get("fencedPods", ())]
    outcomes = get_args(FencedPod.model_fields["outcome"].annotation)
    assert {pod["outcome"] for pod in pods} == set(outcomes)
    plans += [plan_claim(claim_facts(case)) for case in loaded("claims.yaml")]
    reported = {
        each.reason for plan in plans for each in plan.actions if isinstance(each, EmitEvent)
    }
    assert reported == set(get_args(EventReason)) - {"InstallationIncomplete"}


def test_all_conditions_are_there_from_the_first_visit() -> None:
    for case in loaded("topics.yaml", "leaders.yaml", "fenced.yaml"):
        plan = plan_topic(topic_facts(case))
        if plan.status is not None:
            assert [each["type"] for each in plan.status["conditions"]] == list(TOPIC_REASONS)
    for case in loaded("claims.yaml"):
        plan = plan_claim(claim_facts(case))
        if plan.status is not None:
            assert [each["type"] for each in plan.status["conditions"]] == list(CLAIM_REASONS)


def test_the_plan_of_a_shown_status_does_not_change_it() -> None:
    for case in loaded("topics.yaml", "fenced.yaml"):
        facts = topic_facts(case)
        first = plan_topic(facts)
        if (
            first.status is None
            or facts.drift
            or facts.status_editor
            or facts.attempts
            or facts.fence_answer
            or facts.handover_answer
        ):
            continue
        declared = parse_topic({**facts.declared.document, "status": first.status})
        again = plan_topic(dataclasses.replace(facts, declared=declared, now=facts.now + 0.5))
        assert (again.status or first.status) == first.status, case["name"]  # None: it stays
        assert not [each for each in again.actions if isinstance(each, EmitEvent)], case["name"]
