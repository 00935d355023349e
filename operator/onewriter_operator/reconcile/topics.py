"""Reconciles ExclusiveTopics: gathers the facts, performs the actions of the plan."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final, TypedDict

import structlog

from onewriter_core.kubernetes.kinds import (
    SERVICE,
    SERVICE_NAME_LABEL,
    SLICE,
    TOPIC,
    Key,
    key_of,
    named,
)
from onewriter_core.kubernetes.names import FENCE, HANDOVER, RECONCILE_AT
from onewriter_core.kubernetes.objects import KubeObject, TopicObject, parse, parse_topic_status
from onewriter_core.topic_view import ProducerView
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
from onewriter_operator.plan.fenced import open_fences
from onewriter_operator.plan.topic import UNKNOWN_SECONDS, Plan, epoch_of, plan_topic
from onewriter_operator.reconcile import removal, status
from onewriter_operator.reconcile.answered_actions import AnsweredActions, has_answer
from onewriter_operator.reconcile.api_calls import ApiFails, api_answer, enforce, unless_gone
from onewriter_operator.reconcile.cache import (
    DELETION_SECONDS,
    RefusedWrite,
    TopicCache,
)
from onewriter_operator.reconcile.context import ReconcileContext
from onewriter_operator.reconcile.followed_pods import Pod
from onewriter_operator.reconcile.repairs import RepairLimit
from onewriter_operator.workqueue import GONE, RetryLater

ROUNDS_MAX: Final = 8
"""How often one reconcile may perform actions, add the answers to its facts and plan again."""

REPLANS_MAX: Final = 3
"""How often one reconcile may meet a new refused write and plan again."""

REFUSED_SECONDS: Final = 60.0
"""Delay after a write that the API server refused, or of an object that the topic does not own. It doubles with
each refusal."""

FAILING_SECONDS: Final = 5.0
"""Delay after a write at which the API server failed, which doubles with each failure."""

FOREIGN_SECONDS: Final = 10.0
"""After a selector was removed from the leader Service: time for Kubernetes to stop writing slices for it."""

FOREIGN_POLL_SECONDS: Final = 2.0

FOREIGN_PODS: Final = "other pods than the writer's"

log = structlog.get_logger(__name__)

_KINDS: Final = {SERVICE.kind: SERVICE, SLICE.kind: SLICE}

STATUS_FIELDS: Final = frozenset(
    {"observedGeneration", "topic", "epoch", "holder", "waiting", "partitions", "durability"}
    | {"transitions", "fencedPods", "sharedProducers"}
)
"""Fields of the status that only the operator may write."""


class _DependentFacts(TypedDict):
    """The fields of TopicFacts about the leader Service's objects."""

    service: KubeObject | None
    slices: tuple[KubeObject, ...]
    obsolete: tuple[KubeObject, ...]
    foreign_slices: tuple[KubeObject, ...]
    name_conflict: str
    write_refusals: dict[str, str]


class TopicReconciler:
    """Reconciles one ExclusiveTopic at a time."""

    def __init__(
        self, context: ReconcileContext, *, failing_seconds: float = FAILING_SECONDS
    ) -> None:
        self._context = context
        self._failing_seconds = failing_seconds
        self._answered = AnsweredActions(context)
        self._repairs = RepairLimit(lambda: asyncio.get_running_loop().time())
        self._caches: dict[str, TopicCache] = {}
        self._uid_of: dict[Key, str] = {}
        self._topics_of_pod: dict[str, set[Key]] = {}
        self._pods_of_topic: dict[Key, set[str]] = {}

    def of_pod(self, uid: str) -> list[Key]:
        """The topics whose plans depend on a pod."""
        return sorted(self._topics_of_pod.get(uid, ()))

    def with_dependent(self, key: Key) -> list[str]:
        """The names of the topics in its namespace that own such a Service or EndpointSlice."""
        name = f"{key.kind}/{key.name}"
        return [
            topic.name
            for topic, uid in self._uid_of.items()
            if topic.namespace == key.namespace and name in self._caches[uid].written
        ]

    def drifted(self, topic: Key, what: str) -> None:
        """Note an outside change of a topic; the next reconcile shows it."""
        uid = self._uid_of.get(topic, "")
        if uid:
            cache = self._caches[uid]
            cache.drift = tuple(dict.fromkeys((*cache.drift, what)))[:8]

    async def reconcile(self, key: Key, replans: int = REPLANS_MAX) -> float | None:
        """Reconcile a topic; see workqueue.Reconcile."""
        topic = self._context.store.topic(key)
        if topic is None:
            self._forget(key)
            return GONE
        cache = self._cache_of(topic)
        plan = await self._settled_plan(key, cache)
        topic = self._context.store.topic(key)
        if topic is None:
            self._forget(key)
            return GONE
        later, is_refused = await self._write_dependents(topic, cache, plan)
        if is_refused and replans:
            return await self.reconcile(key, replans - 1)
        return await self._carry_out(topic, cache, plan, later)

    # ------------------------------------------------------------ facts and plan

    def _cache_of(self, topic: TopicObject) -> TopicCache:
        key, uid = topic.key, topic.uid
        if self._uid_of.get(key, uid) != uid:
            self._forget(key)
        self._uid_of[key] = uid
        cache = self._caches.setdefault(uid, TopicCache())
        requested = topic.annotation(RECONCILE_AT)
        if requested != cache.reconcile_at:
            # An administrator requests a fresh look: cached observations do not count.
            cache.reconcile_at, cache.stored = requested, None
            cache.pods.clear()
            cache.attempts.clear()
            cache.forget_refused_writes()
        if topic.generation != cache.generation:
            cache.generation = topic.generation
            cache.forget_refused_writes()
        # The results of removed orders are dropped: a later order is new, whatever its text.
        cache.fence = cache.fence if topic.annotation(FENCE) else None
        cache.handover = cache.handover if topic.annotation(HANDOVER) else None
        return cache

    def _forget(self, key: Key) -> None:
        self._caches.pop(self._uid_of.pop(key, ""), None)
        self._depend(key, set())
        self._context.followed.want(key, None)
        self._context.metrics.forget_topic(key)

    def _depend(self, key: Key, uids: set[str]) -> None:
        """Reconcile the topic when one of these pods changes."""
        for uid in self._pods_of_topic.pop(key, set()) - uids:
            self._topics_of_pod[uid].discard(key)
            if not self._topics_of_pod[uid]:
                del self._topics_of_pod[uid]
        if uids:
            self._pods_of_topic[key] = uids
        for uid in uids:
            self._topics_of_pod.setdefault(uid, set()).add(key)

    async def _settled_plan(self, key: Key, cache: TopicCache) -> Plan:
        """Plan, perform the actions whose answers the plan needs, and plan again until none is left."""
        done: set[Action] = set()
        for _ in range(ROUNDS_MAX):
            topic = self._context.store.topic(key)
            if topic is None:
                return Plan((), None)
            facts = self._facts(topic, cache)
            plan = plan_topic(facts)
            asking = [each for each in plan.actions if has_answer(each) and each not in done]
            if not asking:
                return replace(plan, actions=tuple(a for a in plan.actions if not has_answer(a)))
            for question in asking:
                done.add(question)
                await self._answered.perform(topic, facts.acceptance.topic, cache, question)
        raise RetryLater(f"not settled within {ROUNDS_MAX} rounds")

    def _facts(self, topic: TopicObject, cache: TopicCache) -> TopicFacts:
        key, now = topic.key, asyncio.get_running_loop().time()
        seen = self._context.facts(topic, cache, STATUS_FIELDS)
        if seen["view"] is not None:
            cache.epoch_seen = max(cache.epoch_seen, seen["view"].epoch)
        facts = TopicFacts(
            declared=topic,
            **seen,
            stored=cache.stored,
            epoch_seen=cache.epoch_seen,
            fenced_before=cache.fenced_pods,
            attempts={
                name: replace(attempt, age_seconds=now - at)
                for name, (attempt, at) in cache.attempts.items()
            },
            written_digests=cache.written,
            fence_answer=cache.fence,
            handover_answer=cache.handover,
            deletion=self._deletion(cache, now),
            drift=cache.drift,
            may_lead_services=self._context.leader_services.covers(key.namespace),
            may_delete_pods=self._context.pod_deletion.covers(key.namespace),
        )
        fences = open_fences(facts)
        uids = {pod.pod_uid for pod in fences}
        leader_pod = _pod_of(topic, None if facts.view is None else facts.view.holder)
        if leader_pod is not None:
            uids.add(leader_pod.uid)
        self._depend(key, uids)
        is_watched = leader_pod is None or self._context.store.pod(leader_pod.uid) is not None
        self._context.followed.want(key, None if is_watched else leader_pod)
        facts = replace(
            facts,
            pods=self._pods(uids, cache, now),
            nodes=cache.known_nodes(now),
            fenced_seconds=self._fenced_seconds([pod.identifier for pod in fences], cache, now),
            **self._dependents(topic, cache),
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
    def _fenced_seconds(fences: list[str], cache: TopicCache, now: float) -> dict[str, float]:
        cache.fenced_since = {name: cache.fenced_since.get(name, now) for name in fences}
        cache.attempts = {n: found for n, found in cache.attempts.items() if n in fences}
        return {name: now - since for name, since in cache.fenced_since.items()}

    def _dependents(self, topic: TopicObject, cache: TopicCache) -> _DependentFacts:
        """The facts about the leader Service's objects."""
        wanted, namespace = topic.spec.leader_service, topic.key.namespace
        name = "" if wanted is None else wanted.name
        # The topic may own other objects, for example claims of a user: the operator ignores them.
        owned = [
            each for each in self._context.store.owned_by(topic.uid) if each.key.kind in _KINDS
        ]
        service = self._context.store.get(Key(SERVICE.kind, namespace, name)) if name else None
        of_service = self._context.store.slices_of(namespace, name) if name else []
        slices = tuple(each for each in of_service if each.is_owned_by(topic.uid))
        foreign = tuple(each for each in of_service if not each.is_owned_by(topic.uid))
        kept = {each.key for each in slices} | {Key(SERVICE.kind, namespace, name)}
        obsolete = tuple(each for each in owned if each.key not in kept)
        now = asyncio.get_running_loop().time()
        present = {named(each.key) for each in (*owned, *of_service)}
        wanted_names = {named(Key(SERVICE.kind, namespace, name))} | {
            named(Key(SLICE.kind, namespace, leader.slice_name(name, each)))
            for each in ("IPv4", "IPv6")
        }
        cache.keep_refused_writes(present | wanted_names)
        refused_writes = cache.present_refused_writes(now)
        foreign_names = [name for name, each in refused_writes.items() if each.is_foreign]
        return {
            "service": service,
            "slices": slices,
            "obsolete": obsolete,
            "foreign_slices": foreign,
            "name_conflict": foreign_names[0] if foreign_names else "",
            "write_refusals": {
                n: each.message for n, each in refused_writes.items() if not each.is_foreign
            },
        }

    # ------------------------------------------------------------ performing the plan

    async def _carry_out(
        self,
        topic: TopicObject,
        cache: TopicCache,
        plan: Plan,
        later: RetryLater | None,
    ) -> float | None:
        """Write the status, then perform finalizers and Events. Raises RetryLater, also ``later``."""
        after = [
            action.after_seconds for action in plan.actions if isinstance(action, RequeueAfter)
        ]
        if plan.status is None:
            cache.drift = plan.drift
        else:
            left = await status.write(
                self._context.kube, self._context.store, TOPIC, topic, plan.status
            )
            self._count(topic, plan)
            topic = self._context.store.topic(topic.key) or topic
            cache.editor = left.status_editor(STATUS_FIELDS)
            # What was noted while the status was written is not in it: the next status shows it.
            cache.drift = tuple(each for each in cache.drift if each not in plan.drift)
            cache.fenced_pods = parse_topic_status(plan.status).fenced_pods
        cache.fence, cache.handover = _old(cache.fence), _old(cache.handover)
        for action in plan.actions:
            if isinstance(action, SetFinalizers):
                await self._set_finalizers(topic, action)
        for action in plan.actions:
            if isinstance(action, EmitEvent):
                self._context.recorder.emit(topic, action)
        if cache.stored is not None and not cache.stored.is_known:
            cache.stored = None
            after.append(UNKNOWN_SECONDS)
        elif cache.stored is not None and cache.stored.is_undivided and topic.spec.partitions:
            cache.stored = None  # an administrator may delete the topic
            after.append(REFUSED_SECONDS)
        elif cache.stored is not None and _is_elsewhere(topic, cache.stored):
            cache.stored = None  # an administrator may reassign it
            after.append(REFUSED_SECONDS)
        if await self._remove_foreign_slices(topic, cache):
            after.append(FOREIGN_POLL_SECONDS)
        if later is not None:
            raise later
        now = asyncio.get_running_loop().time()
        after += [each.until - now for each in cache.present_refused_writes(now).values()]
        return min(after, default=None)

    async def _write_dependents(
        self, topic: TopicObject, cache: TopicCache, plan: Plan
    ) -> tuple[RetryLater | None, bool]:
        """Write and remove the objects that a topic owns.

        Returns the temporary failure, if there was one (the status can still be written), and whether
        there is a new refused write, so that the plan has to be made again.
        """
        later: RetryLater | None = None
        for action in plan.actions:
            if not isinstance(action, Apply | Remove):
                continue
            try:
                refused = await self._write_dependent(topic, cache, action)
            except RetryLater as error:
                later = error
                continue
            if refused is not None:
                log.warning("dependent.refused", object=_title(action), reason=refused.message)
                return None, True
        return later, False

    def _count(self, topic: TopicObject, plan: Plan) -> None:
        """Count the changes between the former status and the new one."""
        before, shown = topic.status, parse_topic_status(plan.status or {})
        known = {pod.identifier: pod.outcome for pod in before.fenced_pods}
        for pod in shown.fenced_pods:
            if pod.identifier not in known:
                self._context.metrics.fenced.labels(pod.cause).inc()
            if pod.outcome not in {"Pending", known.get(pod.identifier)}:
                self._context.metrics.removed.labels(pod.outcome).inc()
        former = before.epoch or 0
        for each in shown.transitions:
            if not former or each.epoch <= former:
                continue
            if each.leaderless_ms is not None:
                self._context.metrics.failover.observe(each.leaderless_ms / 1000)
            if each.outage_ms is not None:
                self._context.metrics.outage.labels(each.cause).observe(each.outage_ms / 1000)
        for drift in plan.drift:
            self._context.metrics.drift.labels(drift.partition("/")[0].partition(",")[0]).inc()
        self._context.metrics.topic(topic.key, shown)

    async def _write_dependent(
        self, topic: TopicObject, cache: TopicCache, action: Apply | Remove
    ) -> RefusedWrite | None:
        """Write or remove one object; the write if it was refused. Raises RetryLater for a temporary failure."""
        now = asyncio.get_running_loop().time()
        title = _title(action)
        self._await_repair(topic, cache, action)
        try:
            if isinstance(action, Apply):
                if await self._apply(topic, cache, action):
                    return None
                cache.refused_writes[title] = foreign = RefusedWrite(
                    "", now + REFUSED_SECONDS, is_foreign=True
                )
                return foreign
            await self._remove(action)
            cache.failures.pop(title, None)
        except ApiFails as failure:
            return cache.note_refused_write(title, str(failure), now, self._failing_seconds)
        except ApiRefused as refused:
            hint = "" if isinstance(action, Apply) else f"; delete it: it leads to {FOREIGN_PODS}"
            return cache.note_refused_write(title, f"{refused}{hint}", now, REFUSED_SECONDS)
        return None

    def _await_repair(self, topic: TopicObject, cache: TopicCache, action: Apply | Remove) -> None:
        """Raises RetryLater if another program changes the object again and again."""
        if isinstance(action, Apply):
            is_repair = cache.written.get(_title(action)) == digest(action.document)
        else:
            found = self._context.store.get(action.key)
            is_repair = found is not None and not found.is_owned_by(topic.uid)
        if not is_repair:
            return
        # Foreign slices have a new name each time, so all of a topic count together.
        name = f"{topic.uid}/{_title(action) if isinstance(action, Apply) else 'slices'}"
        delay = self._repairs.delay_seconds(name)
        if delay > 0:
            raise RetryLater(f"{_title(action)} is changed again and again", delay)
        self._repairs.repaired(name)

    async def _remove(self, action: Remove) -> None:
        key = action.key
        kind = _KINDS[key.kind]
        await unless_gone(self._context.kube.delete(kind, key.namespace, key.name, action.uid))
        found = self._context.store.get(key)
        if found is not None and found.uid == action.uid and not found.finalizers:
            self._context.store.remove(found.document)  # no watch may report it

    async def _apply(self, topic: TopicObject, cache: TopicCache, action: Apply) -> bool:
        """Write an object; False if an object that the topic does not own has the name."""
        wanted = action.document
        key = key_of(wanted)
        if self._context.store.get(key) is None:
            there = await api_answer(self._context.kube.get(action.kind, key.namespace, key.name))
            if there is not None and not parse(there).is_owned_by(topic.uid):
                return False
        former = self._context.store.get(key)
        if former is not None and (former.document.get("spec") or {}).get("selector"):
            cache.foreign_until = asyncio.get_running_loop().time() + FOREIGN_SECONDS
        written = await api_answer(enforce(self._context.kube, action.kind, wanted, action.version))
        cache.refused_writes.pop(named(key), None)
        cache.failures.pop(named(key), None)
        cache.written[named(key)] = digest(wanted)
        self._context.store.put(written)
        return True

    async def _remove_foreign_slices(self, topic: TopicObject, cache: TopicCache) -> bool:
        """Delete the slices that Kubernetes wrote for a selector of others; whether to look again later.

        Kubernetes does not delete them when the selector is removed.
        """
        wanted = topic.spec.leader_service
        if wanted is None or asyncio.get_running_loop().time() >= cache.foreign_until:
            return False
        labels = f"{SERVICE_NAME_LABEL}={wanted.name}"
        namespace = topic.key.namespace
        for each in map(parse, await api_answer(self._context.kube.list(SLICE, namespace, labels))):
            if not each.is_owned_by(topic.uid):
                log.warning("slice.foreign", object=named(each.key))
                try:
                    await unless_gone(
                        self._context.kube.delete(SLICE, namespace, each.key.name, each.uid)
                    )
                except ApiRefused as refused:
                    # The status reports slices of others that the operator may not delete.
                    log.warning("slice.not_removed", object=named(each.key), reason=str(refused))
        return True

    async def _set_finalizers(self, topic: TopicObject, action: SetFinalizers) -> None:
        written = await api_answer(
            self._context.kube.set_finalizers(TOPIC, topic.document, action.finalizers)
        )
        if not parse(written).is_going:
            self._context.store.put(written)


def _title(action: Apply | Remove) -> str:
    return named(action.key if isinstance(action, Remove) else key_of(action.document))


def _is_elsewhere(topic: TopicObject, stored: StoredTopic) -> bool:
    """Whether another namespace declared the topic first."""
    return stored.declared_by not in {"", topic.key.namespace}


def _pod_of(topic: TopicObject, holder: ProducerView | None) -> Pod | None:
    """The pod that the leader Service leads to; None without a Service or a pod."""
    if topic.spec.leader_service is None or holder is None or not holder.has_pod:
        return None
    return Pod(topic.key.namespace, holder.pod, holder.pod_uid)


def _old(answer: OrderResult | None) -> OrderResult | None:
    """The result of an order for the next reconcile: reported, or None to send the order again."""
    return None if answer is None or answer.is_open else replace(answer, is_news=False)
