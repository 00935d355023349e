"""Decides which declared objects the brokers receive, and builds the desired state that they receive.

No I/O. The answer for a single object is immediate, because each reconcile asks; the body consists of
cached pieces, because a burst of a thousand objects builds it many times.

* Of two objects for one topic, the older one counts (by creationTimestamp, then uid).
* An object counts only for topics of its namespace's tenant, and only if no other namespace declared
  the topic first (``declared_by``, which brokers store).
* The brokers never receive an object that the models refuse: one invalid object must not keep all
  others from the brokers.
* A topic that is being deleted with its log is sent as closed: it admits no new producer.
* A paused or unmanaged object is sent as it was before. So is an object whose new spec is invalid, with
  its claims; after a start the former spec is unknown, and an invalid object is not sent.
* An edited object that a broker refuses is sent to that broker as it accepted it last (``compose``).
* A new topic is sent only after a broker has said whether it existed before (``admit``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, NamedTuple

from pydantic import ValidationError

from onewriter_core.api import ExclusiveTopic, ProducerClaim
from onewriter_core.api.tenancy import Tenancy
from onewriter_core.api.violations import in_words
from onewriter_core.ids import InvalidTopicName, TopicName
from onewriter_core.json_values import Json, mapping
from onewriter_core.kubernetes.kinds import CLAIM, TOPIC, Key
from onewriter_core.kubernetes.names import CLAIM_LABEL, PAUSED, UNMANAGED
from onewriter_core.kubernetes.objects import ClaimObject, DeclaredObject, PodObject, TopicObject
from onewriter_operator.plan.facts import Acceptance
from onewriter_operator.store import ObjectCopy

BODY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest body that a broker accepts."""

_FINISHED: Final = frozenset({"Succeeded", "Failed"})
"""Phases of pods that never run again."""


class Piece(NamedTuple):
    """The text of one object in the desired state, and its digest."""

    text: str
    digest: str


_NOTHING: Final[Mapping[tuple[Key, str], Piece | None]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Desired:
    """A whole desired state. ``pieces``: that of each object in it, by key."""

    revision: str
    body: bytes
    pieces: Mapping[Key, Piece]

    def digests(self) -> dict[Key, str]:
        """The digest of each object's piece."""
        return {key: piece.digest for key, piece in self.pieces.items()}


@dataclass(frozen=True, slots=True)
class _Validation:
    """Result of validating one generation of an object; ``topic`` is empty if unknown."""

    generation: int
    topic: str = ""
    problem: str = ""


class Declarations:
    """The declared topics and claims of one cluster. Create it before the store is filled."""

    def __init__(self, store: ObjectCopy, tenancy: Tenancy | None = None) -> None:
        self._store = store
        self._tenancy = tenancy or Tenancy()
        self._declared_by: dict[str, str] = {}
        self._validations: dict[str, _Validation] = {}
        self._by_topic: dict[str, set[Key]] = {}
        self._topic_of: dict[Key, str] = {}
        self._pieces: dict[Key, Piece] = {}
        self._held: dict[str, DeclaredObject] = {}
        self._admitted: set[str] = set()
        self._awaited: set[str] = set()
        self._selecting: set[Key] = set()
        self._acceptances: dict[Key, Acceptance] = {}
        store.listen(self._changed)

    # ------------------------------------------------------------ one object

    def acceptance(self, key: Key) -> Acceptance:
        """Whether the brokers receive an object, and as which topic."""
        found = self._store.declared(key)
        if found is None:
            return Acceptance("TopicMissing", f"there is no {key.kind} {key}")
        if isinstance(found, TopicObject):
            return self._topic_acceptance(found)
        return self._claim_acceptance(found)

    def keys_of(self, topic: str) -> list[Key]:
        """The ExclusiveTopics for a Pulsar topic."""
        return sorted(self._by_topic.get(topic, ()))

    def topics(self) -> list[str]:
        """The Pulsar topics that any object declares."""
        return list(self._by_topic)

    def declared_by(self, topic: str, namespace: str) -> bool:
        """Note the first namespace that declared a topic, as a broker reports it; whether it was news."""
        known = self._declared_by.get(topic, "")
        if not self._tenancy.is_enforced or namespace == known:
            return False
        if namespace:
            self._declared_by[topic] = namespace
        else:
            self._declared_by.pop(topic, None)
        for key in self._by_topic.get(topic, ()):
            self._acceptances.pop(key, None)
        return True

    def admit(self, topic: TopicObject) -> None:
        """Send a topic from now on: a broker has said whether it existed before."""
        self._admitted.add(topic.uid)

    def start(self) -> None:
        """Note the topics of the complete store, which a former operator may have sent already."""
        self._awaited = {each.uid for each in self._store.topics()}

    def awaits_answers(self) -> bool:
        """Whether a topic that existed at the start still waits for a broker's look-up.

        A desired state without it would withdraw the topic from the brokers for a moment.
        """
        self._awaited = {
            each.uid
            for each in self._store.topics()
            if each.uid in self._awaited
            and not self.is_admitted(each)
            and self._topic_acceptance(each).reason == "Accepted"
        }
        return bool(self._awaited)

    def is_admitted(self, topic: TopicObject) -> bool:
        """Whether this operator or a former one has sent the topic before."""
        return topic.status.observed_generation >= 0 or topic.uid in self._admitted

    def piece(self, key: Key) -> str:
        """The digest of the piece that brokers receive for an object; empty if they receive none."""
        found = self._store.declared(key)
        if found is None or not self._is_passed_on(found):
            return ""
        return self._piece(found).digest

    def is_held_back(self, found: DeclaredObject) -> bool:
        """Whether brokers have an earlier spec than the one that is paused."""
        held = self._held.get(found.uid)
        return _is_paused(found) and held is not None and _spec(held) != _spec(found)

    def selected(self, claim: ClaimObject) -> list[str] | None:
        """The uids of the pods that a claim's podSelector selects; None without a podSelector."""
        wanted = claim.spec.pod_labels
        if wanted is None:
            return None
        pods = self._store.pods_in(claim.key.namespace)
        return sorted(pod.uid for pod in pods if _matches(pod, wanted))

    def selecting(self, namespace: str) -> list[Key]:
        """The claims of a namespace that select pods."""
        return sorted(key for key in self._selecting if key.namespace == namespace)

    # ------------------------------------------------------------ all of them

    def compose(self, instead: Mapping[tuple[Key, str], Piece | None] = _NOTHING) -> Desired:
        """The present desired state.

        ``instead``: by key and digest, the earlier piece to send in place of a piece that a broker
        refused. With None the object is left out, and so is one that is being deleted: its earlier
        piece would admit producers.
        """
        texts: dict[str, list[str]] = {TOPIC.kind: [], CLAIM.kind: []}
        pieces: dict[Key, Piece] = {}
        pods: dict[str, list[str]] = {}
        for each in self._store.all_declared():
            if not self._is_passed_on(each):
                continue
            own = self._piece(each)
            piece = instead.get((each.key, own.digest), own)
            if piece is None or (piece != own and each.is_going):
                continue
            texts[each.key.kind].append(piece.text)
            pieces[each.key] = piece
            uids = self.selected(each) if isinstance(each, ClaimObject) else None
            if uids is not None:
                pods[str(each.key)] = uids
        topics, claims = (",".join(sorted(each)) for each in texts.values())
        inner = f'"topics":[{topics}],"claims":[{claims}],"pods":{json.dumps(pods, sort_keys=True)}'
        revision = hashlib.sha256(inner.encode()).hexdigest()[:32]
        return Desired(revision, f'{{"revision":"{revision}",{inner}}}'.encode(), pieces)

    # ------------------------------------------------------------ inside

    def _changed(self, key: Key, is_own: bool) -> None:
        del is_own
        if key.kind not in {TOPIC.kind, CLAIM.kind}:
            return
        found = self._store.declared(key)
        if key.kind == TOPIC.kind:
            topic = "" if found is None else self._validated(found).topic
            former = self._topic_of.pop(key, "")
            for each in (key, *self._by_topic.get(former, ()), *self._by_topic.get(topic, ())):
                self._acceptances.pop(each, None)
            if former and former != topic:
                self._by_topic[former].discard(key)
                if not self._by_topic[former]:
                    del self._by_topic[former]
            if topic:
                self._topic_of[key] = topic
                self._by_topic.setdefault(topic, set()).add(key)
        if isinstance(found, ClaimObject) and found.spec.pod_labels is not None:
            self._selecting.add(key)
        else:
            self._selecting.discard(key)
        if found is None:
            self._pieces.pop(key, None)
            self._forget_gone()
        else:
            self._hold(found)

    def _hold(self, found: DeclaredObject) -> None:
        """Keep the object that brokers receive while its later spec is not sent."""
        if self._validated(found).problem:
            return
        if _is_paused(found):
            self._held.setdefault(found.uid, found)
        else:
            self._held[found.uid] = found

    def _forget_gone(self) -> None:
        """Drop the state of deleted objects, from time to time."""
        known = self._store.count(TOPIC.kind) + self._store.count(CLAIM.kind)
        if len(self._validations) <= 2 * known + 64:
            return
        living = {each.uid for each in self._store.all_declared()}
        self._validations = {uid: read for uid, read in self._validations.items() if uid in living}
        self._held = {uid: held for uid, held in self._held.items() if uid in living}
        self._admitted &= living
        self._declared_by = {
            topic: first for topic, first in self._declared_by.items() if topic in self._by_topic
        }

    def _validated(self, found: DeclaredObject) -> _Validation:
        """Validate an object once per generation."""
        known = self._validations.get(found.uid)
        if known is None or known.generation != found.generation:
            former = "" if known is None else known.topic
            known = _validate(found)
            # A topic's name never changes, even if the new spec is invalid.
            known = self._validations[found.uid] = replace(known, topic=known.topic or former)
        return known

    def _topic_acceptance(self, topic: TopicObject) -> Acceptance:
        known = self._acceptances.get(topic.key)
        if known is None:
            known = self._acceptances[topic.key] = self._judged(topic)
        return known

    def _judged(self, topic: TopicObject) -> Acceptance:
        read, key = self._validated(topic), topic.key
        is_kept = bool(read.problem and read.topic) and topic.uid in self._held
        if read.problem and not is_kept:
            return Acceptance("Invalid", read.problem, read.topic)
        if refusal := self._tenant_refusal(topic, read.topic):
            return Acceptance("NotThisTenant", refusal, read.topic)
        namespace, first = key.namespace, self._declared_by.get(read.topic, "")
        if first and first != namespace:
            message = (
                f"{read.topic} was declared by namespace {first} before: it stays with it, also"
                " without an object, until an administrator reassigns it"
                f" (kubectl onewriter reassign {key.name} --to {namespace})"
            )
            return Acceptance("DeclaredElsewhere", message, read.topic)
        rivals = [
            found
            for each in self._by_topic.get(read.topic, ())
            if (found := self._store.topic(each)) is not None
            and first in {"", each.namespace}
            and not self._tenant_refusal(found, read.topic)
        ]
        oldest = min(rivals, key=_age, default=topic)
        if oldest.key != key:
            rival = str(oldest.key)
            message = f"ExclusiveTopic {rival} is older and has {read.topic}"
            return Acceptance("ResourceConflict", message, read.topic, rival)
        if topic.is_going and topic.spec.deletes_log:
            return Acceptance("Closing", "it is being deleted together with its log", read.topic)
        if is_kept:
            message = f"{read.problem}; brokers continue with the previous spec"
            return Acceptance("Invalid", message, read.topic, is_kept=True)
        return Acceptance("Accepted", "", read.topic)

    def _tenant_refusal(self, found: TopicObject, topic: str) -> str:
        """Why the object's namespace may not declare the topic; empty when it may."""
        return self._tenancy.refusal(found.key.namespace, TopicName.parse(topic))

    def _claim_acceptance(self, claim: ClaimObject) -> Acceptance:
        read = self._validated(claim)
        is_kept = claim.uid in self._held
        if read.problem and not is_kept:
            return Acceptance("Invalid", read.problem)
        key = claim.topic_key
        topic = self._store.topic(key)
        if topic is None:
            message = f"there is no ExclusiveTopic {key.name} in namespace {key.namespace}"
            return Acceptance("TopicMissing", message)
        found = self._topic_acceptance(topic)
        is_served = found.is_kept or found.reason == "Accepted"
        if is_served and read.problem:
            return Acceptance("Invalid", read.problem, found.topic, is_kept=True)
        if is_served:
            return Acceptance("Accepted", "", found.topic)
        message = f"ExclusiveTopic {key.name}: {found.message}"
        return Acceptance("NotServed", message, found.topic)

    def _is_passed_on(self, found: DeclaredObject) -> bool:
        if not self.acceptance(found.key).is_passed_on:
            return False
        return isinstance(found, ClaimObject) or self.is_admitted(found)

    def _piece(self, declared: DeclaredObject) -> Piece:
        """The piece of the desired state for an object."""
        key, source = declared.key, declared
        if _is_paused(declared) or self._validated(declared).problem:
            source = self._held.get(declared.uid, declared)
        is_closing = (
            isinstance(declared, TopicObject)
            and self._topic_acceptance(declared).reason == "Closing"
        )
        tag = f"{source.uid}/{source.generation}/{is_closing}"
        known = self._pieces.get(key)
        if known is not None and known.digest.startswith(f"{tag}/"):
            return known
        spec = _spec(source)
        if is_closing:
            spec = spec | {"access": mapping(spec.get("access")) | {"requireClaim": True}}
        passed = {
            "apiVersion": source.api_version,
            "kind": key.kind,
            "metadata": {"name": key.name, "namespace": key.namespace},
            "spec": spec,
        }
        text = json.dumps(passed, sort_keys=True, separators=(",", ":"))
        found = Piece(text, f"{tag}/{hashlib.sha256(text.encode()).hexdigest()[:16]}")
        self._pieces[key] = found
        return found


def _spec(found: DeclaredObject) -> Json:
    """The whole spec, as the brokers receive it."""
    return mapping(found.document.get("spec"))


def _is_paused(found: DeclaredObject) -> bool:
    return found.is_set(PAUSED) or found.is_set(UNMANAGED)


def _age(topic: TopicObject) -> tuple[str, str]:
    return topic.created, topic.uid


def _matches(pod: PodObject, wanted: Mapping[str, str]) -> bool:
    is_named = CLAIM_LABEL in pod.labels
    return is_named and pod.phase not in _FINISHED and wanted.items() <= pod.labels.items()


def _validate(found: DeclaredObject) -> _Validation:
    """Validate an object by its strict model."""
    generation = found.generation
    model = ExclusiveTopic if isinstance(found, TopicObject) else ProducerClaim
    try:
        declared = model.from_document(found.document)
        topic = str(declared.topic_name) if isinstance(declared, ExclusiveTopic) else ""
    except ValidationError as error:
        return _Validation(generation, problem=_sentence(in_words(model, error)))
    except InvalidTopicName as error:
        return _Validation(generation, problem=str(error))
    return _Validation(generation, topic)


def _sentence(parts: Iterable[object]) -> str:
    return "; ".join(str(part).removeprefix(", ") for part in parts)[:900]
