"""Turns changes of the store and of the brokers into keys in the work queue."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from onewriter_core.kubernetes.kinds import (
    CLAIM,
    POD,
    SERVICE,
    SERVICE_NAME_LABEL,
    SLICE,
    TOPIC,
    Key,
)
from onewriter_core.kubernetes.objects import DeclaredObject, TopicObject
from onewriter_operator.brokers.fleet import Fleet
from onewriter_operator.declarations import Declarations
from onewriter_operator.metrics import Metrics
from onewriter_operator.plan.topic import BROKER_DRIFT
from onewriter_operator.reconcile.topics import TopicReconciler
from onewriter_operator.store import ObjectCopy
from onewriter_operator.workqueue import WorkQueue

_Fingerprint = tuple[object, ...]

_DEPENDENT: Final = frozenset({SERVICE.kind, SLICE.kind})


class Controller:
    """Listens to store and fleet, and fills the queue. It decides nothing about the objects."""

    def __init__(self, store: ObjectCopy, declarations: Declarations, metrics: Metrics) -> None:
        self._store = store
        self._declarations = declarations
        self._metrics = metrics
        self._queue: WorkQueue
        self._fleet: Fleet
        self._topics: TopicReconciler
        self._known: dict[Key, _Fingerprint] = {}
        self._names: dict[Key, str] = {}
        self._pods: dict[Key, str] = {}
        self._is_complete = False
        self._installation_changed: Callable[[], None] = lambda: None

    def work_with(
        self,
        queue: WorkQueue,
        fleet: Fleet,
        topics: TopicReconciler,
        installation_changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Complete the construction and start to listen."""
        self._queue, self._fleet, self._topics = queue, fleet, topics
        self._installation_changed = installation_changed
        self._store.listen(self.changed)

    def start(self) -> None:
        """Reconcile all objects and send the desired state, once the store is complete.

        Not earlier: a desired state with half of the topics would withdraw the other half.
        """
        self._is_complete = True
        self._declarations.start()
        for key in self._all_keys():
            self._is_news(key)
            self._names[key] = self._declarations.acceptance(key).topic
            self._queue.add(key)
        self._fleet.declare()

    def _all_keys(self) -> list[Key]:
        return [each.key for each in self._store.all_declared()]

    # ------------------------------------------------------------ the store

    def changed(self, key: Key, is_own: bool) -> None:
        """Handle a new, changed or removed object of the store; see store.Listener."""
        if not self._is_complete:
            return
        if key.kind in {TOPIC.kind, CLAIM.kind}:
            if not is_own:
                self._queue.add(key)
            if self._is_news(key):
                self._fleet.declare()
                if key.kind == TOPIC.kind:
                    self._requeue_affected(key)
        elif key.kind == POD.kind:
            self._pod_changed(key)
        elif key.kind in _DEPENDENT:
            self._dependent_changed(key)

    def _is_news(self, key: Key) -> bool:
        """Whether a part of the object changed on which other objects depend."""
        declared = self._store.declared(key)
        found = None if declared is None else _fingerprint(declared)
        if found == self._known.get(key):
            return False
        if found is None:
            self._known.pop(key, None)
        else:
            self._known[key] = found
        return True

    def _requeue_affected(self, key: Key) -> None:
        """Reconcile a topic's claims, and the other objects of its present and former Pulsar topic."""
        topics = {self._names.pop(key, ""), self._declarations.acceptance(key).topic} - {""}
        if key in self._known:
            self._names[key] = self._declarations.acceptance(key).topic
        for topic in topics:
            for rival in self._declarations.keys_of(topic):
                self._queue.add(rival)
                self._requeue_claims(rival)
        self._requeue_claims(key)

    def _requeue_claims(self, topic: Key) -> None:
        for claim in self._store.claims_of(topic):
            self._queue.add(claim.key)

    def pod_changed(self, uid: str) -> None:
        """Reconcile the topics that depend on a changed pod."""
        for topic in self._topics.of_pod(uid):
            self._queue.add(topic)

    def _pod_changed(self, key: Key) -> None:
        pod = self._store.get(key)
        uids = {self._pods.pop(key, "")}
        if pod is not None:
            self._pods[key] = pod.uid
            uids.add(pod.uid)
        for uid in uids:
            self.pod_changed(uid)
        for claim in self._declarations.selecting(key.namespace):
            self._queue.add(claim)
            self._fleet.declare()

    def _dependent_changed(self, key: Key) -> None:
        found = self._store.get(key)
        owners = () if found is None else found.owners
        names = [owner.name for owner in owners if owner.kind == TOPIC.kind]
        if found is not None and not names and key.kind == SLICE.kind:
            # Another program made it: it concerns the topic that has this leader Service.
            service = found.labels.get(SERVICE_NAME_LABEL, "")
            names = self._topics.with_dependent(Key(SERVICE.kind, key.namespace, service))
        for name in names or self._topics.with_dependent(key):
            self._queue.add(Key(TOPIC.kind, key.namespace, name))

    # ------------------------------------------------------------ the brokers

    def topic_changed(self, topic: str, claims: Collection[str] | None) -> None:
        """See fleet.Listener."""
        for key in self._declarations.keys_of(topic):
            self._queue.add(key)
            if claims is None:
                self._requeue_claims(key)
            else:
                for name in claims:
                    self._queue.add(Key(CLAIM.kind, key.namespace, name))

    def applied(self, keys: Collection[Key]) -> None:
        """See fleet.Listener."""
        for key in keys:
            self._queue.add(key)

    def fleet_changed(self) -> None:
        """See fleet.Listener."""
        self._metrics.brokers.set(self._fleet.state().synced)
        self._installation_changed()
        if self._is_complete:
            for key in self._all_keys():
                self._queue.add(key)

    def buckets_changed(self, topics_in: Callable[[Iterable[str]], Collection[str]]) -> None:
        """See fleet.Listener."""
        if self._is_complete:
            for topic in topics_in(self._declarations.topics()):
                self.topic_changed(topic, None)

    def installation_changed(self) -> None:
        """See fleet.Listener."""
        self._installation_changed()

    def drifted(self, broker: str) -> None:
        """See fleet.Listener."""
        self._metrics.drift.labels("Broker").inc()
        for topic in self._store.topics():
            self._topics.drifted(topic.key, f"{BROKER_DRIFT} {broker}")
            self._queue.add(topic.key)


def _fingerprint(found: DeclaredObject) -> _Fingerprint:
    """The parts of an object that other objects depend on."""
    fenced = found.status.fenced_pods if isinstance(found, TopicObject) else ()
    return (
        found.uid,
        found.generation,
        found.is_going,
        tuple((pod.pod_uid, pod.epoch, pod.outcome) for pod in fenced),
        tuple(sorted(found.annotations.items())),
        bool(found.document.get("spec")),
    )
