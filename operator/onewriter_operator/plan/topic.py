"""The plan of an ExclusiveTopic: its actions and its whole status. Pure.

The status depends on the answers of some actions (an eviction, a look-up): the caller performs these,
adds the answers to the facts and plans again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from onewriter_core.api.status import (
    PARTITIONS_SHOWN_MAX,
    SHARED_SHOWN_MAX,
    TRANSITIONS_SHOWN_MAX,
)
from onewriter_core.json_values import Json, mappings, present
from onewriter_core.kubernetes.kinds import SERVICE, SLICE, Key, key_of, named, seconds_of
from onewriter_core.kubernetes.names import PAUSED, TOPIC_FINALIZER, UNMANAGED
from onewriter_core.kubernetes.objects import FencedPod, KubeObject, TopicStatus, parse_topic_status
from onewriter_core.topic_view import ProducerView, TopicView, TransitionView
from onewriter_operator import conditions
from onewriter_operator.plan import leader, verdicts
from onewriter_operator.plan.actions import (
    Action,
    Apply,
    DeleteLog,
    EmitEvent,
    LookUpPod,
    LookUpTopic,
    Remove,
    RequeueAfter,
    SetFinalizers,
)
from onewriter_operator.plan.difference import difference, differs, digest, exact
from onewriter_operator.plan.facts import SETTLING_SECONDS, TopicFacts
from onewriter_operator.plan.fenced import FencedPlan, plan_fenced, pods_of_status
from onewriter_operator.plan.orders import plan_orders

DELETION_DEADLINE_SECONDS: Final = 300.0
"""After this time since the deletion the operator removes its finalizer, even if the log still exists."""

DELETION_RETRY_SECONDS: Final = 5.0

FLICKER_SECONDS: Final = 1.0
"""The status shows the state between two writers only if it lasts longer than this."""

UNKNOWN_SECONDS: Final = 5.0
"""Delay before the operator asks the brokers again about an unknown topic."""

BROKER_DRIFT: Final = "desired state of"
"""Prefix of drift that concerns every topic: each status shows it, and the operator writes no Event for it."""

_REPORTED_ONCE: Final = (("PolicyApplied", "Adopted"), ("Conflict", "ResourceConflict"))
"""Conditions and reasons that cause an Event when they are new."""

KINDS_SHOWN: Final = frozenset({"grant", "share", "fence"})
"""Kinds of transitions that the status shows."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The actions in their order, and the status to write afterwards; None: keep the present one.

    ``drift``: outside changes, which the next status shows.
    """

    actions: tuple[Action, ...]
    status: Json | None
    drift: tuple[str, ...] = ()


def plan_topic(facts: TopicFacts) -> Plan:
    """Decide everything for one reconcile."""
    if facts.declared.is_set(UNMANAGED):
        return _unmanaged(facts)
    if facts.declared.is_going:
        return _deleting(facts)
    if needs_look_up(facts):
        return Plan((LookUpTopic(facts.acceptance.topic),), None)
    if facts.is_too_early:
        return Plan((RequeueAfter(SETTLING_SECONDS),), None, facts.drift)
    problem = service_problem(facts)
    drift = list(dict.fromkeys((*facts.drift, *_status_drift(facts))))
    actions = [*_finalizer(facts)]
    fenced = FencedPlan(pods_of_status(facts), ())
    if facts.acceptance.is_passed_on and not facts.declared.is_set(PAUSED):
        fenced = plan_fenced(facts)
        actions += [*plan_orders(facts), *fenced.actions]
        if problem is None or problem.reason == verdicts.SERVICE_REFUSED:
            service_actions, service_drift = _leader_objects(facts)
            actions += service_actions
            drift += service_drift
    wait = _wait_seconds(facts)
    if wait is not None:
        # Events about pods are written together with the status that shows them.
        kept = [
            each
            for each in actions
            if each not in fenced.actions or not isinstance(each, EmitEvent)
        ]
        return Plan((*kept, RequeueAfter(wait)), None, tuple(drift))
    status = _status(facts, verdicts.verdicts(facts, problem, drift), fenced.pods)
    own = [each for each in drift if not each.startswith(BROKER_DRIFT)]
    actions += [EmitEvent("DriftRepaired", "; ".join(own))] if own else []
    shown = parse_topic_status(status)
    actions += _events(facts, shown)
    left = verdicts.drift_left_seconds(shown.condition("Drifted"), facts.now)
    actions += [] if left is None else [RequeueAfter(left)]
    return Plan(tuple(actions), status, tuple(drift))


def _wait_seconds(facts: TopicFacts) -> float | None:
    """How many seconds the operator keeps the present status; None if it may write a new one now."""
    if not facts.acceptance.is_passed_on:
        return None
    if facts.is_moving:
        return facts.limits.moving_seconds
    if _flickers(facts):
        return FLICKER_SECONDS
    is_unknown = facts.view is None and not _is_stored(facts) and not facts.epoch_seen
    if facts.status_editor and is_unknown and facts.acceptance.reason == "Accepted":
        # The true epoch is unknown: it may be neither the one that was written nor a lower one.
        return UNKNOWN_SECONDS
    return facts.limits.patience_seconds if facts.is_settling_soon else None


def _is_stored(facts: TopicFacts) -> bool:
    return facts.stored is not None and facts.stored.is_known


def needs_look_up(facts: TopicFacts) -> bool:
    """Whether to ask a broker first if the topic existed before, and for its last epoch."""
    is_new = facts.declared.status.observed_generation < 0
    return (
        # An administrator may have reassigned a topic that another namespace declared.
        facts.acceptance.reason in {"Accepted", "DeclaredElsewhere"}
        and facts.stored is None
        and facts.brokers.synced > 0
        and (is_new or facts.view is None)
    )


# ------------------------------------------------------------ status


def epoch_of(facts: TopicFacts) -> int | None:
    """The epoch to show: the highest known one, and never less than the status showed before.

    An epoch that another field manager wrote does not count.
    """
    found = [facts.epoch_seen, 0 if facts.view is None else facts.view.epoch]
    if facts.stored is not None:
        found.append(facts.stored.epoch)
    shown = facts.declared.status.epoch
    if shown is not None and not facts.status_editor:
        found.append(shown)
    is_known = _is_stored(facts) or facts.view is not None or shown is not None
    return max(found) if is_known else None


def _status(
    facts: TopicFacts, judged: Sequence[conditions.Verdict], fenced: Sequence[FencedPod]
) -> Json:
    before = facts.declared.status
    generation = facts.declared.generation
    found: Json = {"observedGeneration": generation}
    if facts.acceptance.topic:
        found["topic"] = facts.acceptance.topic
    epoch = epoch_of(facts)
    if epoch is not None:
        found["epoch"] = epoch
    found |= _writers(facts, before.document)
    durability = _durability(facts)
    if durability:
        found["durability"] = durability
    if fenced:
        found["fencedPods"] = [pod.to_document() for pod in fenced]
    found["conditions"] = conditions.written(judged, before.conditions, generation, facts.now)
    return found


def _durability(facts: TopicFacts) -> str:
    """The durability that a broker reports: of the topic, or for one that no client uses, of its store."""
    if facts.view is not None and facts.view.durability:
        return facts.view.durability
    if facts.durability_refusal is not None:
        return "" if facts.durability_refusal else facts.declared.spec.durability
    is_edited = bool(facts.status_editor)
    return "" if is_edited else facts.declared.status.durability


def _writers(facts: TopicFacts, before: Json) -> Json:
    """Holder, queue, partitions and transitions; unchanged while no broker can report them."""
    view = facts.view
    names = ("holder", "sharedProducers", "waiting", "partitions", "transitions")
    if view is None:
        is_unknown = not facts.is_unserved and facts.acceptance.is_passed_on
        kept = names if is_unknown else ("partitions", "transitions")
        found = {name: value for name, value in present(**before).items() if name in kept}
        if not is_unknown:
            found["waiting"] = 0
        return found
    found = {"waiting": view.waiting}
    if view.holder is not None:
        found["holder"] = holder(view.holder)
    if view.shared_producers:
        found["sharedProducers"] = [
            holder(each) for each in view.shared_producers[:SHARED_SHOWN_MAX]
        ]
    partitions = [
        {
            "partition": each.partition,
            "epoch": each.epoch,
            **present(producerName=each.holder),
        }
        for each in view.partitions
        if each.partition is not None
    ]
    if partitions:
        found["partitions"] = partitions[:PARTITIONS_SHOWN_MAX]
    known = () if facts.status_editor else mappings(before.get("transitions"))
    transitions = with_former(shown_transitions(view), known)
    if transitions:
        found["transitions"] = transitions
    return found


def holder(writer: ProducerView) -> Json:
    """The holder in the form of ``status.holder``."""
    return present(
        name=writer.pod or writer.producer_name,
        producerName=writer.producer_name,
        claim=writer.claim,
        pod=writer.pod,
        podUID=writer.pod_uid,
        node=writer.node,
        address=writer.address,
        since=writer.since,
    )


def shown_transitions(view: TopicView) -> list[Json]:
    """The last transitions in the form of ``status.transitions``, newest first."""
    shown = [each for each in view.transitions if each.kind in KINDS_SHOWN]
    shown.sort(key=lambda each: (each.epoch, each.at), reverse=True)
    return [_shown(each) for each in shown[:TRANSITIONS_SHOWN_MAX]]


def with_former(shown: list[Json], known: Iterable[Json]) -> list[Json]:
    """The transitions that brokers report, and those that the status showed before.

    A broker knows only what its bucket's audit still has. A transition that was shown keeps its time, and the fields
    that the broker has lost.
    """
    by_epoch = {each["epoch"]: each for each in reversed(shown)}
    newest = max(by_epoch, default=None)
    for each in known:
        epoch = each.get("epoch")
        if not isinstance(epoch, int) or (newest is not None and epoch > newest):
            continue
        by_epoch[epoch] = {**each, **by_epoch.get(epoch, {}), "at": each.get("at")}
    found = sorted(by_epoch.values(), key=lambda each: int(each["epoch"]), reverse=True)
    return found[:TRANSITIONS_SHOWN_MAX]


def _shown(transition: TransitionView) -> Json:
    found: Json = {"epoch": transition.epoch, "cause": transition.cause, "at": transition.at}
    if transition.holder is not None:
        writer = transition.holder
        found |= present(producerName=writer.producer_name, pod=writer.pod)
    return found | {name: value for name, value in transition.times() if value is not None}


def _flickers(facts: TopicFacts) -> bool:
    """Whether the topic has been between two writers for too short a time to show it."""
    is_new = facts.declared.status.observed_generation != facts.declared.generation
    is_changing = facts.view is not None and facts.view.state in verdicts.TAKING_OVER
    return is_changing and facts.view_age_seconds < FLICKER_SECONDS and not is_new


def _status_drift(facts: TopicFacts) -> list[str]:
    return [f"status, by {facts.status_editor}"] if facts.status_editor else []


def _events(facts: TopicFacts, status: TopicStatus) -> list[Action]:
    """Events for the changes between the former status and the new one."""
    before = facts.declared.status
    events: list[Action] = []
    epoch, former = status.epoch or 0, before.epoch or 0
    if epoch > former and status.transitions and not facts.status_editor:
        last = status.transitions[0]
        writer = last.holder.producer_name if last.holder else "no producer"
        note = f"Epoch {epoch} ({last.cause}): {writer} writes"
        if last.outage_ms:
            note += f". No producer could write for {last.outage_ms} ms"
        events.append(EmitEvent("EpochAdvanced", note))
    known = {pod.identifier for pod in pods_of_status(facts)}
    for pod in status.fenced_pods:
        if pod.identifier not in known:
            name = pod.pod or pod.pod_uid
            note = f"The writer in pod {name} was fenced in epoch {pod.epoch}: {pod.cause}"
            events.append(EmitEvent("WriterFenced", note, is_warning=True))
    adopted, conflict = (_new_message(before, status, *each) for each in _REPORTED_ONCE)
    events += [EmitEvent("TopicAdopted", adopted)] if adopted else []
    events += [EmitEvent("ResourceConflict", conflict, is_warning=True)] if conflict else []
    return events


def _new_message(before: TopicStatus, status: TopicStatus, kind: str, reason: str) -> str:
    """The message of a condition that has a reason for the first time; empty if it has not."""
    now = status.condition(kind)
    return now.message if now.reason == reason != before.condition(kind).reason else ""


# ------------------------------------------------------------ objects with the annotation unmanaged


def _unmanaged(facts: TopicFacts) -> Plan:
    actions = _release(facts)
    before, generation = facts.declared.status, facts.declared.generation
    status = {name: value for name, value in before.document.items() if name != "conditions"}
    status["observedGeneration"] = generation
    status["conditions"] = conditions.written(
        verdicts.unmanaged(facts), before.conditions, generation, facts.now
    )
    return Plan(tuple(actions), status)


# ------------------------------------------------------------ deletion


def _finalizer(facts: TopicFacts) -> list[Action]:
    """The object has a finalizer only if its log is to be deleted with it."""
    present = facts.declared.finalizers
    is_wanted = facts.declared.spec.deletes_log and facts.acceptance.is_passed_on
    if is_wanted and TOPIC_FINALIZER not in present:
        return [SetFinalizers((*present, TOPIC_FINALIZER))]
    return [] if is_wanted else _release(facts)


def _release(facts: TopicFacts) -> list[Action]:
    present = facts.declared.finalizers
    if TOPIC_FINALIZER not in present:
        return []
    return [SetFinalizers(tuple(name for name in present if name != TOPIC_FINALIZER))]


def _deleting(facts: TopicFacts) -> Plan:
    """The object was deleted and has a finalizer, perhaps only one of another controller."""
    status = _status(
        facts,
        verdicts.verdicts(facts, None, ()),
        pods_of_status(facts),
    )
    if TOPIC_FINALIZER not in facts.declared.finalizers:
        return Plan((), status)
    if not facts.declared.spec.deletes_log or facts.acceptance.reason != "Closing":
        return Plan(tuple(_release(facts)), None)
    answer = facts.deletion
    topic = facts.acceptance.topic
    if answer is not None and answer.answer == "Deleted":
        return Plan(
            (EmitEvent("TopicDeleted", f"The log of {topic} is gone"), *_release(facts)), None
        )
    if answer is not None and answer.answer == "NotEmpty":
        note = f"{topic} has entries and stays"
        return Plan((EmitEvent("TopicRetained", note), *_release(facts)), None)
    since = seconds_of(facts.declared.deleted)
    if since is not None and facts.now - since > DELETION_DEADLINE_SECONDS:
        why = answer.message if answer is not None else "the brokers cannot be reached"
        why = "it is paused" if facts.declared.is_set(PAUSED) else why
        note = f"{topic} was not deleted within {DELETION_DEADLINE_SECONDS:.0f} s and stays: {why}"
        return Plan((EmitEvent("DeletionGivenUp", note, is_warning=True), *_release(facts)), None)
    if facts.declared.is_set(PAUSED) or answer is not None or not facts.applied.is_everywhere:
        return Plan((RequeueAfter(DELETION_RETRY_SECONDS),), status)
    only_if_empty = facts.declared.spec.deletion_policy == "DeleteIfEmpty"
    return Plan((DeleteLog(topic, only_if_empty),), status)


# ------------------------------------------------------------ the leader's Service


def service_problem(facts: TopicFacts) -> verdicts.ServiceProblem | None:
    """Why the operator cannot write the leader Service; None if it can."""
    wanted = facts.declared.spec.leader_service
    conflict = facts.name_conflict
    if wanted is not None and not facts.may_lead_services:
        message = (
            f"the operator has no right to make Services in namespace"
            f" {facts.declared.key.namespace}: an administrator enables it with the chart value"
            " operator.leaderServices"
        )
        return verdicts.ServiceProblem(verdicts.SERVICE_NOT_ENABLED, message)
    if wanted is not None and facts.service is not None:
        is_ours = facts.service.is_owned_by(facts.declared.uid)
        conflict = conflict or ("" if is_ours else f"Service/{wanted.name}")
    if wanted is not None and conflict:
        message = f"{conflict} already exists and does not belong to this object"
        return verdicts.ServiceProblem(verdicts.SERVICE_TAKEN, message)
    if facts.write_refusals:
        message = "; ".join(f"{name}: {why}" for name, why in sorted(facts.write_refusals.items()))
        return verdicts.ServiceProblem(verdicts.SERVICE_REFUSED, message)
    return None


def _leader_objects(facts: TopicFacts) -> tuple[list[Action], list[str]]:
    """The actions that write the leader Service and its EndpointSlice, and the outside changes that they repair."""
    wanted = facts.declared.spec.leader_service
    actions: list[Action] = [
        Remove(each.key, each.uid) for each in facts.obsolete if not _is_refused(facts, each.key)
    ]
    epoch = epoch_of(facts)
    if wanted is None or epoch is None:
        return actions, []
    if facts.view is None and not facts.is_unserved:
        return actions, []  # the Service may still point to a producer that writes
    writer = None if facts.view is None else facts.view.holder
    if writer is not None and not writer.has_pod:
        writer = None
    pod = None if writer is None else facts.pods.get(writer.pod_uid)
    if writer is not None and (pod is None or (pod.exists and not pod.ip)):
        namespace = facts.declared.key.namespace
        actions.append(LookUpPod(namespace, writer.pod, writer.pod_uid))
    is_ahead = leader.is_ahead(epoch, facts.slices, facts.service)
    if is_ahead and facts.ahead_seconds < facts.limits.ahead_seconds:
        # Another operator may know a later writer.
        return [*actions, RequeueAfter(facts.limits.ahead_seconds)], []

    service = leader.service(facts.declared, wanted, epoch)
    endpoints = leader.endpoints(facts.declared, wanted, epoch, writer, pod)
    other_slices = {each.key: each for each in facts.slices}
    endpoint_slice = other_slices.pop(key_of(endpoints), None)
    version = "" if endpoint_slice is None else endpoint_slice.resource_version
    drift: list[str] = []
    for apply, found in (
        (Apply(SERVICE, service), facts.service),
        (Apply(SLICE, endpoints, version), endpoint_slice),
    ):
        is_right = found is not None and not _differs(apply.document, found)
        if not is_right and not _is_refused(facts, key_of(apply.document)):
            drift += _outside_change(facts, apply.document, found)
            actions.append(apply)
    foreign = [
        each
        for each in facts.foreign_slices
        if facts.service is not None and not each.is_going and not _is_refused(facts, each.key)
    ]
    drift += [f"{named(each.key)} was added" for each in foreign]
    actions += [Remove(each.key, each.uid) for each in foreign]
    actions += [
        Remove(each.key, each.uid)
        for each in other_slices.values()
        if not _is_refused(facts, each.key)
    ]
    return actions, drift


def _differs(wanted: Json, found: KubeObject) -> bool:
    return differs(exact(wanted, found.document), found.document)


def _is_refused(facts: TopicFacts, key: Key) -> bool:
    return named(key) in facts.write_refusals


def _outside_change(facts: TopicFacts, wanted: Json, found: KubeObject | None) -> list[str]:
    """How ``found`` differs from what this process wrote, if it wrote exactly the wanted object."""
    name = named(key_of(wanted))
    if facts.written_digests.get(name) != digest(wanted):
        return []
    if found is None:
        return [f"{name} was deleted"]
    return [f"{name}: {difference(exact(wanted, found.document), found.document)}"]
