"""Visits to ExclusiveTopics: gathers what is known, performs what the plan asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from onewriter_operator.brokers.client import BrokerRefused, BrokerUnreachable
from onewriter_operator.brokers.fleet import Fleet
from onewriter_operator.declarations import Declarations
from onewriter_operator.documents import (
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
    spec_of,
    status_editor,
    status_of,
    taken_in,
    uid_of,
)
from onewriter_operator.events import Recorder
from onewriter_operator.kube import Kube
from onewriter_operator.metrics import Metrics
from onewriter_operator.plan.actions import (
    Action,
    Apply,
    DeleteLog,
    Fence,
    LookUpPod,
    LookUpTopic,
    Remove,
    RemovePod,
    SetFinalizers,
    Tell,
    Visit,
)
from onewriter_operator.plan.difference import digest
from onewriter_operator.plan.facts import Deletion, Fenced, PodFacts, TopicFacts
from onewriter_operator.plan.fenced import identifier, open_fences
from onewriter_operator.plan.leader import SERVICE_NAME_LABEL
from onewriter_operator.plan.topic import TopicPlan, plan_topic
from onewriter_operator.reconcile import removal, status
from onewriter_operator.reconcile.calls import asked, enforce, unless_gone
from onewriter_operator.reconcile.memory import DELETION_SECONDS, Memory
from onewriter_operator.store import Store
from onewriter_operator.workqueue import GONE, RetryLater

ROUNDS_MAX: Final = 8
"""How often one visit may ask, add the answers to its facts and plan again."""

UNKNOWN_SECONDS: Final = 5.0
"""A broker could not say what it stores of a topic: ask again after so long."""

FOREIGN_SECONDS: Final = 60.0
"""A name that belonged to somebody else is tried again after so long."""

_KINDS: Final = {SERVICE.kind: SERVICE, SLICE.kind: SLICE}

STATUS_FIELDS: Final = frozenset(
    {"observedGeneration", "topic", "epoch", "holder", "waiting", "partitions", "durability"}
    | {"transitions", "fencedPods"}
)
"""Fields of the status that nobody else may write."""


class TopicVisitor:
    """Brings one ExclusiveTopic forward at a time."""

    def __init__(
        self,
        kube: Kube,
        store: Store,
        declarations: Declarations,
        fleet: Fleet,
        recorder: Recorder,
        metrics: Metrics,
        wall_clock: Callable[[], float],
    ) -> None:
        self._kube = kube
        self._store = store
        self._declarations = declarations
        self._fleet = fleet
        self._recorder = recorder
        self._metrics = metrics
        self._wall_clock = wall_clock
        self._memories: dict[str, Memory] = {}
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
            if topic.namespace == key.namespace and name in self._memories[uid].written
        ]

    def drifted(self, topic: Key, what: str) -> None:
        """Something of a topic was found to be changed outside; its next visit shows it."""
        uid = self._uid_of.get(topic, "")
        if uid:
            memory = self._memories[uid]
            memory.drift = tuple(dict.fromkeys((*memory.drift, what)))[:8]

    async def visit(self, key: Key) -> float | None:
        """One visit; see workqueue.Visit."""
        document = self._store.get(key)
        if document is None:
            self._forget(key)
            return GONE
        memory = self._memory(key, document)
        plan = await self._settled_plan(key, memory)
        document = self._store.get(key)
        if document is None:
            self._forget(key)
            return GONE
        return await self._carry_out(key, document, memory, plan)

    # ------------------------------------------------------------ one visit

    def _memory(self, key: Key, document: Json) -> Memory:
        uid = uid_of(document)
        if self._uid_of.get(key, uid) != uid:
            self._forget(key)
        self._uid_of[key] = uid
        memory = self._memories.setdefault(uid, Memory())
        asked = annotation(document, RECONCILE_AT)
        if asked != memory.reconcile_at:
            # A person wants it looked at anew: nothing that was remembered about the outside counts.
            memory.reconcile_at, memory.stored = asked, None
            memory.pods.clear()
            memory.attempts.clear()
        return memory

    def _forget(self, key: Key) -> None:
        self._memories.pop(self._uid_of.pop(key, ""), None)
        self._depend(key, set())
        self._metrics.forget_topic(key)

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

    async def _settled_plan(self, key: Key, memory: Memory) -> TopicPlan:
        """Plan, ask what the plan needs to know, and plan again until it needs nothing more."""
        asked: set[Action] = set()
        for _ in range(ROUNDS_MAX):
            document = self._store.get(key)
            if document is None:
                return TopicPlan((), None)
            facts = self._facts(key, document, memory)
            plan = plan_topic(facts)
            questions = [
                action
                for action in plan.actions
                if self._is_question(action) and action not in asked
            ]
            if not questions:
                return replace(
                    plan, actions=tuple(a for a in plan.actions if not self._is_question(a))
                )
            for question in questions:
                asked.add(question)
                await self._ask(document, memory, question)
        raise RetryLater(f"not settled within {ROUNDS_MAX} rounds")

    @staticmethod
    def _is_question(action: Action) -> bool:
        return isinstance(action, LookUpTopic | LookUpPod | Fence | DeleteLog | RemovePod)

    def _facts(self, key: Key, document: Json, memory: Memory) -> TopicFacts:
        now = asyncio.get_running_loop().time()
        standing = self._declarations.standing(key)
        view = self._fleet.view(standing.topic) if standing.is_passed_on else None
        if view is not None:
            memory.epoch_seen = max(memory.epoch_seen, int(view.status.get("epoch", 0)))
        piece = self._declarations.piece(key)
        applied = self._fleet.applied(key, piece)
        if self._declarations.is_held_back(document):
            applied = replace(applied, is_held_back=True)
        editor = status_editor(document, STATUS_FIELDS)
        facts = TopicFacts(
            document=document,
            now=self._wall_clock(),
            standing=standing,
            applied=applied,
            brokers=self._fleet.state(),
            view=None if view is None else view.status,
            view_age_seconds=3600.0 if view is None else now - view.since,
            is_lost=self._fleet.is_lost(standing.topic),
            pending_seconds=memory.pending_seconds(piece, now),
            stored=memory.stored,
            epoch_seen=memory.epoch_seen,
            status_editor=editor[0] if editor != memory.editor else "",
            attempts={
                name: replace(attempt, age_seconds=now - at)
                for name, (attempt, at) in memory.attempts.items()
            },
            written=memory.written,
            fence_answer=memory.fence,
            deletion=self._deletion(memory, now),
            drift=memory.drift,
        )
        fences = open_fences(facts)
        holder = (facts.view or {}).get("holder") or {}
        uids = {str(pod["podUID"]) for pod in fences}
        if spec_of(document).get("leaderService") and holder.get("podUID"):
            uids.add(str(holder["podUID"]))
        self._depend(key, uids)
        return replace(
            facts,
            pods=self._pods(uids, memory, now),
            fenced_for=self._fenced_for([identifier(pod) for pod in fences], memory, now),
            **self._dependents(document, memory),
        )

    @staticmethod
    def _deletion(memory: Memory, now: float) -> Deletion | None:
        if memory.deletion is None:
            return None
        answer, at = memory.deletion
        is_old = answer.answer == "Failed" and now - at > DELETION_SECONDS
        return None if is_old else answer

    def _pods(self, uids: set[str], memory: Memory, now: float) -> dict[str, PodFacts]:
        found = {}
        for uid in uids:
            watched = self._store.pod(uid)
            known = memory.known_pod(uid, now) if watched is None else removal.pod_facts(watched)
            if known is not None:
                found[uid] = known
        return found

    @staticmethod
    def _fenced_for(fences: list[str], memory: Memory, now: float) -> dict[str, float]:
        memory.fenced_since = {name: memory.fenced_since.get(name, now) for name in fences}
        return {name: now - since for name, since in memory.fenced_since.items()}

    def _dependents(self, document: Json, memory: Memory) -> dict[str, Any]:
        """What is there of the leader's Service."""
        wanted = spec_of(document).get("leaderService") or {}
        name, namespace = wanted.get("name", ""), metadata(document)["namespace"]
        owned = self._store.owned_by(uid_of(document))
        service = self._store.get(Key(SERVICE.kind, namespace, name)) if name else None
        slices = tuple(
            each
            for each in owned
            if each["kind"] == SLICE.kind and labels_of(each).get(SERVICE_NAME_LABEL) == name
        )
        kept = {key_of(each) for each in slices} | {Key(SERVICE.kind, namespace, name)}
        left_over = tuple(each for each in owned if key_of(each) not in kept)
        now = asyncio.get_running_loop().time()
        taken = [each for each, at in memory.foreign.items() if now - at < FOREIGN_SECONDS]
        return {
            "service": service,
            "slices": slices,
            "left_over": left_over,
            "taken": taken[0] if taken else "",
        }

    # ------------------------------------------------------------ questions

    async def _ask(self, document: Json, memory: Memory, action: Action) -> None:
        """Perform an action whose answer the plan waits for. Raises RetryLater."""
        now = asyncio.get_running_loop().time
        match action:
            case LookUpTopic(topic):
                memory.stored = await self._fleet.stored(topic)
                if memory.stored.is_known:
                    self._declarations.admit(document)
                    self._fleet.declare()
            case LookUpPod(namespace, name, uid):
                found = await asked(removal.look_up(self._kube, namespace, name, uid))
                memory.remember_pod(uid, found, now())
            case RemovePod():
                former = memory.attempts.get(action.fence)
                count = 1 if former is None else former[0].count + 1
                attempt = await removal.remove(self._kube, action, count)
                memory.attempts[action.fence] = (attempt, now())
            case Fence(topic, epoch):
                memory.fence = await self._fence(topic, epoch)
            case DeleteLog():
                memory.deletion = (await self._delete(action), now())
            case _:
                raise AssertionError(f"{action} is no question")

    async def _fence(self, topic: str, epoch: int) -> Fenced:
        try:
            await self._fleet.fence(topic, epoch)
        except BrokerRefused as refused:
            return Fenced(epoch, "; ".join(refused.errors), is_news=True)
        except BrokerUnreachable as error:
            raise RetryLater(f"the fence of epoch {epoch} is not decided: {error}") from error
        return Fenced(epoch, is_news=True)

    async def _delete(self, action: DeleteLog) -> Deletion:
        try:
            left = await self._fleet.delete(action.topic, only_if_empty=action.only_if_empty)
        except (BrokerRefused, BrokerUnreachable) as error:
            return Deletion("Failed", str(error))
        return Deletion("NotEmpty", f"{left} entries") if left else Deletion("Deleted")

    # ------------------------------------------------------------ carrying out

    async def _carry_out(
        self, key: Key, document: Json, memory: Memory, plan: TopicPlan
    ) -> float | None:
        """Write what is to be written, then say what happened. Raises RetryLater."""
        told = [action for action in plan.actions if isinstance(action, Tell)]
        after = [action.after_seconds for action in plan.actions if isinstance(action, Visit)]
        for action in plan.actions:
            if isinstance(action, Apply) and not await self._apply(document, memory, action):
                return await self.visit(key)  # the name is taken: plan again, knowing that
            if isinstance(action, Remove):
                await self._remove(action)
        if plan.status is None:
            memory.drift = plan.drift
        else:
            await status.write(self._kube, self._store, TOPIC, document, plan.status)
            self._count(document, memory, plan)
            document = self._store.get(key) or document
            memory.drift, memory.editor = (), status_editor(document, STATUS_FIELDS)
        if memory.fence is not None:
            memory.fence = replace(memory.fence, is_news=False)
        for action in plan.actions:
            if isinstance(action, SetFinalizers):
                await self._set_finalizers(document, action)
        for each in told:
            self._recorder.tell(document, each)
        if memory.stored is not None and not memory.stored.is_known:
            memory.stored = None
            after.append(UNKNOWN_SECONDS)
        return min(after, default=None)

    def _count(self, document: Json, memory: Memory, plan: TopicPlan) -> None:
        """Metrics of what the new status says for the first time."""
        before = status_of(document)
        known = {identifier(pod): pod["outcome"] for pod in before.get("fencedPods") or ()}
        shown = plan.status or {}
        for pod in shown.get("fencedPods") or ():
            name = identifier(pod)
            if name not in known:
                self._metrics.fenced.labels(pod["cause"]).inc()
            if pod["outcome"] not in {"Pending", known.get(name)}:
                self._metrics.removed.labels(pod["outcome"]).inc()
            if pod["outcome"] in {"Evicted", "PodGone", "CameBack", "NotRequested"}:
                memory.attempts.pop(name, None)
        former = int(before.get("epoch") or 0)
        for transition in shown.get("transitions") or ():
            if (
                former
                and transition["epoch"] > former
                and transition.get("leaderlessMs") is not None
            ):
                self._metrics.failover.observe(transition["leaderlessMs"] / 1000)
        for each in plan.drift:
            self._metrics.drift.labels(each.partition("/")[0].partition(",")[0]).inc()
        self._metrics.topic(document | {"status": shown})

    async def _apply(self, document: Json, memory: Memory, action: Apply) -> bool:
        """Write a dependent object; False when the name belongs to somebody else."""
        wanted = action.document
        key = key_of(wanted)
        name = f"{key.kind}/{key.name}"
        if self._store.get(key) is None:
            there = await asked(self._kube.get(action.kind, key.namespace, key.name))
            if there is not None and not is_owned_by(there, uid_of(document)):
                memory.foreign[name] = asyncio.get_running_loop().time()
                return False
        memory.foreign.pop(name, None)
        written = await asked(enforce(self._kube, action.kind, wanted, action.version))
        memory.written[name] = digest(wanted)
        self._store.put(taken_in(written))
        return True

    async def _remove(self, action: Remove) -> None:
        key = action.key
        kind = _KINDS[key.kind]
        await unless_gone(self._kube.delete(kind, key.namespace, key.name, action.uid))

    async def _set_finalizers(self, document: Json, action: SetFinalizers) -> None:
        written = await asked(self._kube.set_finalizers(TOPIC, document, action.finalizers))
        if not metadata(written).get("deletionTimestamp"):
            self._store.put(taken_in(written))
