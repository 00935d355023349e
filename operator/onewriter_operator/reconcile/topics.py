"""Visits to ExclusiveTopics: gathers what is known, performs what the plan asks for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final

import structlog

from onewriter_operator.documents import (
    FENCE,
    HANDOVER,
    RECONCILE_AT,
    SERVICE,
    SLICE,
    TOPIC,
    Json,
    Key,
    annotation,
    is_owned_by,
    key_of,
    labels_of,
    metadata,
    named,
    spec_of,
    status_editor,
    status_of,
    taken_in,
    uid_of,
)
from onewriter_operator.kube import ApiRefused
from onewriter_operator.plan import leader
from onewriter_operator.plan.actions import (
    Action,
    Apply,
    EmitEvent,
    Remove,
    RequeueAfter,
    SetFinalizers,
)
from onewriter_operator.plan.difference import digest
from onewriter_operator.plan.facts import (
    DeletionResult,
    OrderResult,
    PodFacts,
    StoredTopic,
    TopicFacts,
)
from onewriter_operator.plan.fenced import identifier, open_fences
from onewriter_operator.plan.topic import UNKNOWN_SECONDS, Plan, epoch_of, plan_topic
from onewriter_operator.plan.verdicts import wants_partitions
from onewriter_operator.reconcile import removal, status
from onewriter_operator.reconcile.answered_actions import AnsweredActions, has_answer
from onewriter_operator.reconcile.api_calls import ApiFails, api_answer, enforce, unless_gone
from onewriter_operator.reconcile.cache import DELETION_SECONDS, Obstacle, TopicCache
from onewriter_operator.reconcile.context import ReconcileContext
from onewriter_operator.reconcile.followed_pods import Pod
from onewriter_operator.workqueue import GONE, RetryLater

ROUNDS_MAX: Final = 8
"""How often one visit may ask, add the answers to its facts and plan again."""

REPLANS_MAX: Final = 3
"""How often one visit may find something in the way and plan again, knowing that."""

REFUSED_SECONDS: Final = 60.0
"""What the API server refused, or belonged to somebody else, is tried again after so long."""

FAILING_SECONDS: Final = 5.0
"""The same of what it failed at."""

log = structlog.get_logger(__name__)

_KINDS: Final = {SERVICE.kind: SERVICE, SLICE.kind: SLICE}

STATUS_FIELDS: Final = frozenset(
    {"observedGeneration", "topic", "epoch", "holder", "waiting", "partitions", "durability"}
    | {"transitions", "fencedPods"}
)
"""Fields of the status that nobody else may write."""


class TopicReconciler:
    """Brings one ExclusiveTopic forward at a time."""

    def __init__(self, context: ReconcileContext) -> None:
        self._context = context
        self._answered = AnsweredActions(context)
        self._caches: dict[str, TopicCache] = {}
        self._uid_of: dict[Key, str] = {}
        self._topics_of_pod: dict[str, set[Key]] = {}
        self._pods_of_topic: dict[Key, set[str]] = {}

    def of_pod(self, uid: str) -> list[Key]:
        """The topics whose plans depend on a pod."""
        return sorted(self._topics_of_pod.get(uid, ()))

    def with_dependent(self, key: Key) -> list[str]:
        """The names of the topics in its namespace that wrote such a Service or EndpointSlice."""
        name = f"{key.kind}/{key.name}"
        return [
            topic.name
            for topic, uid in self._uid_of.items()
            if topic.namespace == key.namespace and name in self._caches[uid].written
        ]

    def drifted(self, topic: Key, what: str) -> None:
        """Something of a topic was found to be changed outside; its next visit shows it."""
        uid = self._uid_of.get(topic, "")
        if uid:
            cache = self._caches[uid]
            cache.drift = tuple(dict.fromkeys((*cache.drift, what)))[:8]

    async def reconcile(self, key: Key, replans: int = REPLANS_MAX) -> float | None:
        """One visit; see workqueue.Reconcile."""
        document = self._context.store.get(key)
        if document is None:
            self._forget(key)
            return GONE
        cache = self._cache_of(key, document)
        plan = await self._settled_plan(key, cache)
        document = self._context.store.get(key)
        if document is None:
            self._forget(key)
            return GONE
        later, is_obstructed = await self._write_dependents(document, cache, plan)
        if is_obstructed and replans:
            return await self.reconcile(key, replans - 1)
        return await self._carry_out(key, document, cache, plan, later)

    # ------------------------------------------------------------ one visit

    def _cache_of(self, key: Key, document: Json) -> TopicCache:
        uid = uid_of(document)
        if self._uid_of.get(key, uid) != uid:
            self._forget(key)
        self._uid_of[key] = uid
        cache = self._caches.setdefault(uid, TopicCache())
        asked = annotation(document, RECONCILE_AT)
        if asked != cache.reconcile_at:
            # A person wants it looked at anew: nothing that was remembered about the outside counts.
            cache.reconcile_at, cache.stored = asked, None
            cache.pods.clear()
            cache.attempts.clear()
            cache.obstacles.clear()
        # Orders that were taken away are forgotten: the next ones are new, whatever they say.
        cache.fence = cache.fence if annotation(document, FENCE) else None
        cache.handover = cache.handover if annotation(document, HANDOVER) else None
        return cache

    def _forget(self, key: Key) -> None:
        self._caches.pop(self._uid_of.pop(key, ""), None)
        self._depend(key, set())
        self._context.followed.want(key, None)
        self._context.metrics.forget_topic(key)

    def _depend(self, key: Key, uids: set[str]) -> None:
        """Have the topic visited when one of these pods changes."""
        for uid in self._pods_of_topic.pop(key, set()) - uids:
            self._topics_of_pod[uid].discard(key)
            if not self._topics_of_pod[uid]:
                del self._topics_of_pod[uid]
        if uids:
            self._pods_of_topic[key] = uids
        for uid in uids:
            self._topics_of_pod.setdefault(uid, set()).add(key)

    async def _settled_plan(self, key: Key, cache: TopicCache) -> Plan:
        """Plan, ask what the plan needs to know, and plan again until it needs nothing more."""
        done: set[Action] = set()
        for _ in range(ROUNDS_MAX):
            document = self._context.store.get(key)
            if document is None:
                return Plan((), None)
            facts = self._facts(key, document, cache)
            plan = plan_topic(facts)
            asking = [each for each in plan.actions if has_answer(each) and each not in done]
            if not asking:
                return replace(plan, actions=tuple(a for a in plan.actions if not has_answer(a)))
            for question in asking:
                done.add(question)
                await self._answered.perform(document, facts.standing.topic, cache, question)
        raise RetryLater(f"not settled within {ROUNDS_MAX} rounds")

    def _facts(self, key: Key, document: Json, cache: TopicCache) -> TopicFacts:
        now = asyncio.get_running_loop().time()
        seen = self._context.facts(document, cache, STATUS_FIELDS)
        if seen["view"] is not None:
            cache.epoch_seen = max(cache.epoch_seen, int(seen["view"].get("epoch", 0)))
        facts = TopicFacts(
            **seen,
            stored=cache.stored,
            epoch_seen=cache.epoch_seen,
            fenced_before=cache.fenced_pods,
            attempts={
                name: replace(attempt, age_seconds=now - at)
                for name, (attempt, at) in cache.attempts.items()
            },
            written=cache.written,
            fence_answer=cache.fence,
            handover_answer=cache.handover,
            deletion=self._deletion(cache, now),
            drift=cache.drift,
            may_lead_services=self._context.leader_services.covers(key.namespace),
            may_delete_pods=self._context.pod_deletion.covers(key.namespace),
        )
        fences = open_fences(facts)
        holder = (facts.view or {}).get("holder") or {}
        uids = {str(pod["podUID"]) for pod in fences}
        leader_pod = _pod_of(document, holder)
        if leader_pod is not None:
            uids.add(leader_pod.uid)
        self._depend(key, uids)
        is_watched = leader_pod is None or self._context.store.pod(leader_pod.uid) is not None
        self._context.followed.want(key, None if is_watched else leader_pod)
        facts = replace(
            facts,
            pods=self._pods(uids, cache, now),
            fenced_for=self._fenced_for([identifier(pod) for pod in fences], cache, now),
            **self._dependents(document, cache),
        )
        is_ahead = leader.is_ahead(epoch_of(facts) or 0, facts.slices, facts.service)
        return replace(facts, ahead_seconds=cache.ahead_seconds(now, is_ahead=is_ahead))

    @staticmethod
    def _deletion(cache: TopicCache, now: float) -> DeletionResult | None:
        if cache.deletion is None:
            return None
        answer, at = cache.deletion
        is_old = answer.answer == "Failed" and now - at > DELETION_SECONDS
        return None if is_old else answer

    def _pods(self, uids: set[str], cache: TopicCache, now: float) -> dict[str, PodFacts]:
        found = {}
        for uid in uids:
            watched = self._context.store.pod(uid)
            known = self._context.followed.facts(uid) or cache.known_pod(uid, now)
            if watched is not None:
                known = removal.pod_facts(watched)
            if known is not None:
                found[uid] = known
        return found

    @staticmethod
    def _fenced_for(fences: list[str], cache: TopicCache, now: float) -> dict[str, float]:
        cache.fenced_since = {name: cache.fenced_since.get(name, now) for name in fences}
        cache.attempts = {n: found for n, found in cache.attempts.items() if n in fences}
        return {name: now - since for name, since in cache.fenced_since.items()}

    def _dependents(self, document: Json, cache: TopicCache) -> dict[str, Any]:
        """What is there of the leader's Service."""
        wanted = spec_of(document).get("leaderService") or {}
        name, namespace = wanted.get("name", ""), metadata(document)["namespace"]
        # What else people make go with the topic, claims for example, is none of our business.
        owned = [
            each
            for each in self._context.store.owned_by(uid_of(document))
            if each["kind"] in _KINDS
        ]
        service = self._context.store.get(Key(SERVICE.kind, namespace, name)) if name else None
        slices = tuple(
            each
            for each in owned
            if each["kind"] == SLICE.kind and labels_of(each).get(leader.SERVICE_NAME_LABEL) == name
        )
        kept = {key_of(each) for each in slices} | {Key(SERVICE.kind, namespace, name)}
        left_over = tuple(each for each in owned if key_of(each) not in kept)
        now = asyncio.get_running_loop().time()
        obstacles = cache.present_obstacles(now)
        taken = [name for name, each in obstacles.items() if each.is_foreign]
        return {
            "service": service,
            "slices": slices,
            "left_over": left_over,
            "taken": taken[0] if taken else "",
            "refused": {n: each.message for n, each in obstacles.items() if not each.is_foreign},
        }

    # ------------------------------------------------------------ carrying out

    async def _carry_out(
        self,
        key: Key,
        document: Json,
        cache: TopicCache,
        plan: Plan,
        later: RetryLater | None,
    ) -> float | None:
        """Write what is to be written, then say what happened. Raises RetryLater, also ``later``."""
        told = [action for action in plan.actions if isinstance(action, EmitEvent)]
        after = [
            action.after_seconds for action in plan.actions if isinstance(action, RequeueAfter)
        ]
        if plan.status is None:
            cache.drift = plan.drift
        else:
            await status.write(
                self._context.kube, self._context.store, TOPIC, document, plan.status
            )
            self._count(document, plan)
            document = self._context.store.get(key) or document
            cache.drift, cache.editor = (), status_editor(document, STATUS_FIELDS)
            cache.fenced_pods = tuple(plan.status.get("fencedPods") or ())
        cache.fence, cache.handover = _old(cache.fence), _old(cache.handover)
        for action in plan.actions:
            if isinstance(action, SetFinalizers):
                await self._set_finalizers(document, action)
        for each in told:
            self._context.recorder.emit(document, each)
        if cache.stored is not None and not cache.stored.is_known:
            cache.stored = None
            after.append(UNKNOWN_SECONDS)
        elif cache.stored is not None and cache.stored.is_undivided and wants_partitions(document):
            cache.stored = None  # somebody may delete the topic
            after.append(REFUSED_SECONDS)
        elif cache.stored is not None and _is_elsewhere(document, cache.stored):
            cache.stored = None  # an administrator may reassign it
            after.append(REFUSED_SECONDS)
        if later is not None:
            raise later
        now = asyncio.get_running_loop().time()
        after += [each.until - now for each in cache.present_obstacles(now).values()]
        return min(after, default=None)

    async def _write_dependents(
        self, document: Json, cache: TopicCache, plan: Plan
    ) -> tuple[RetryLater | None, bool]:
        """Write and remove what belongs to a topic.

        Returns what is to be repeated soon, if anything is: the status can be written all the same;
        and whether something is newly in the way, so that the plan is another one now.
        """
        later: RetryLater | None = None
        for action in plan.actions:
            if not isinstance(action, Apply | Remove):
                continue
            try:
                obstacle = await self._write_dependent(document, cache, action)
            except RetryLater as error:
                later = error
                continue
            if obstacle is not None:
                key = action.key if isinstance(action, Remove) else key_of(action.document)
                log.warning("dependent.refused", object=named(key), reason=obstacle.message)
                cache.obstacles[named(key)] = obstacle
                return None, True
        return later, False

    def _count(self, document: Json, plan: Plan) -> None:
        """Metrics of what the new status says for the first time."""
        before = status_of(document)
        known = {identifier(pod): pod["outcome"] for pod in before.get("fencedPods") or ()}
        shown = plan.status or {}
        for pod in shown.get("fencedPods") or ():
            name = identifier(pod)
            if name not in known:
                self._context.metrics.fenced.labels(pod["cause"]).inc()
            if pod["outcome"] not in {"Pending", known.get(name)}:
                self._context.metrics.removed.labels(pod["outcome"]).inc()
        former = int(before.get("epoch") or 0)
        for transition in shown.get("transitions") or ():
            if (
                former
                and transition["epoch"] > former
                and transition.get("leaderlessMs") is not None
            ):
                self._context.metrics.failover.observe(transition["leaderlessMs"] / 1000)
        for each in plan.drift:
            self._context.metrics.drift.labels(each.partition("/")[0].partition(",")[0]).inc()
        self._context.metrics.topic(document | {"status": shown})

    async def _write_dependent(
        self, document: Json, cache: TopicCache, action: Apply | Remove
    ) -> Obstacle | None:
        """Write or remove one object; what is in the way. Raises RetryLater for what passes soon."""
        now = asyncio.get_running_loop().time
        try:
            if isinstance(action, Apply):
                is_free = await self._apply(document, cache, action)
                return None if is_free else Obstacle("", now() + REFUSED_SECONDS, is_foreign=True)
            key = action.key
            kind = _KINDS[key.kind]
            await unless_gone(self._context.kube.delete(kind, key.namespace, key.name, action.uid))
        except ApiFails as failure:
            return Obstacle(str(failure), now() + FAILING_SECONDS)
        except ApiRefused as refused:
            return Obstacle(str(refused), now() + REFUSED_SECONDS)
        return None

    async def _apply(self, document: Json, cache: TopicCache, action: Apply) -> bool:
        """Write an object; False when the name belongs to somebody else."""
        wanted = action.document
        key = key_of(wanted)
        if self._context.store.get(key) is None:
            there = await api_answer(self._context.kube.get(action.kind, key.namespace, key.name))
            if there is not None and not is_owned_by(there, uid_of(document)):
                return False
        written = await api_answer(enforce(self._context.kube, action.kind, wanted, action.version))
        cache.obstacles.pop(named(key), None)
        cache.written[named(key)] = digest(wanted)
        self._context.store.put(taken_in(written))
        return True

    async def _set_finalizers(self, document: Json, action: SetFinalizers) -> None:
        written = await api_answer(
            self._context.kube.set_finalizers(TOPIC, document, action.finalizers)
        )
        if not metadata(written).get("deletionTimestamp"):
            self._context.store.put(taken_in(written))


def _is_elsewhere(document: Json, stored: StoredTopic) -> bool:
    """Whether another namespace declared the topic before."""
    return stored.declared_by not in {"", metadata(document)["namespace"]}


def _pod_of(document: Json, holder: Json) -> Pod | None:
    """The pod that the leader's Service leads to; None when there is no Service, or no pod."""
    if not (spec_of(document).get("leaderService") and holder.get("pod") and holder.get("podUID")):
        return None
    return Pod(metadata(document)["namespace"], str(holder["pod"]), str(holder["podUID"]))


def _old(answer: OrderResult | None) -> OrderResult | None:
    """An order's answer as the next visit remembers it: told, or to be asked for again."""
    return None if answer is None or answer.is_open else replace(answer, is_news=False)
