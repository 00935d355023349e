"""The storage protocol (docs/adr/0002) as a model: anchor, store of several nodes, brokers, all their races.

The race
--------
A broker that wants a bucket reads the anchor, inspects the store, changes the anchor by compare-and-set, stamps
the bucket's record in the store, and opens a new ledger there by writing its marker. After this marker the store
refuses all older writers. The broker may freeze between any two of these steps, without a limit of time, while
other components continue: another broker acquires the bucket; the primary dies and a replica that never received
the marker is promoted; the dead primary restarts from a truncated file and, until it is reconfigured, accepts
writes like any primary. Then the first broker resumes. It believes that it owns the bucket, it holds a ledger
that was once valid, it has commands in socket buffers, and a node may have lost the reason to refuse them. If one
such command is accepted on the branch of history that finally counts, the fence was worthless.

Therefore the anchor registers not only an owner but also the one dataset (replid) that counts. A write names the
dataset that it was bound to and is refused elsewhere. Another dataset may be registered only if it descends from
the registered one. Its ``master_replid2`` proves this. Where a restart lost ``master_replid2``, the generation
proves it, because only a stamp *after* the compare-and-set can have written that generation.

How it is modelled
------------------
* ``State.anchor`` is the anchor with its whole past: version v of the record is ``anchor[v]``.
* A node is its role, its replid, its replid2 and the sequence of writes that it executed. The values that scripts
  read (the bucket's generation, owner and stamped version, a log's newest marker and token) are a fold over those
  writes. Every loss is then a shorter sequence.
* A replica may lag by any number of writes. The model makes this choice late: a linked replica has all writes of
  its primary, and its promotion keeps any prefix of them.
* Each successful compare-and-set creates a *binding*. A binding's commands (stamp, read the log, fence, roll,
  append, cursor write, catalog write) may be executed on any writable node at any later time until the end of the
  run. This covers a frozen broker, a crashed one whose bytes are still under way, one that reconnected elsewhere,
  and the owner itself, all at once. A crash is a binding whose commands no longer arrive.
* An accepted write that is newer than all grants changes nothing that any later check reads, so it is not stored.
  A *stale* one is stored as such (ghost), because its branch may be registered later.

Ghost variables, read by properties and never by the protocol: ``granted`` and ``granted_epoch`` (the highest
ledger and topic epoch that any producer may have received), ``parents`` (the dataset from which each dataset was
really derived), stale marks.

Bounds
------
``Scope`` limits nodes, brokers, anchor versions (successful acquisitions), datasets (promotions and restarts) and
ledgers per reservation. The model proves nothing beyond these bounds. The weaker protocols fail well within them.

Not modelled
------------
* The content of entries: retries, deduplication, the reconciliation of the tail after a re-fence, the commit
  watermark, and with them durability and visibility (redis invariants 8 and 9).
* Several topics or buckets, and more than one shard. One topic per bucket loses nothing here: the scripts treat
  topics one by one, under one record.
* Damage to a live dataset other than emptying it completely (DEL, XSETID): the store's access rules forbid it to
  brokers. Emptying (FLUSHALL) is an action if ``Scope.flushes`` allows it. It shows that no broker regains an
  emptied bucket without an operator, not even by a first stamp that was made while nothing was granted and that
  arrives after a grant *and* after the emptying.
* How the anchor distinguishes a bucket in use from one that was never used (``last_ledger``). The model assumes
  it, by reading the ghost ``granted``.
* Force: ``adopt --force`` ignores lineage on purpose. Restoring an old copy of the anchor.
* The last granted ledger recorded in the anchor (with it a holder resumes after a failover that provably lost no
  marker); in the model such a holder must be granted the topic again.
* Liveness. Only ``sometimes`` properties name what the protocol refuses permanently.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.model.storage_state import (
    PROTOCOL,
    Action,
    Attempt,
    Binding,
    Node,
    Rules,
    Scope,
    State,
    Version,
    View,
    Write,
    view,
)

Transition = tuple[Action, State]


@dataclass(frozen=True, slots=True)
class StorageProtocol:
    """The model. ``Rules`` select the checks of brokers and scripts, ``Scope`` sets the bounds."""

    rules: Rules = PROTOCOL
    scope: Scope = Scope()

    def initial(self) -> Iterator[State]:
        """Return one primary with linked replicas, without writes or registrations unless ``begun``."""
        state = State(
            anchor=(Version(0, 0, -1, 0),),
            nodes=tuple(Node(index == 0, 1, 0, ()) for index in range(self.scope.nodes)),
            bindings=(Binding(0, 1, 1, 0, 0),),
            attempts=(None,) * self.scope.brokers,
            elected=0,
            granted=0,
            granted_epoch=0,
            parents=(0,),
        )
        yield self._begun(state) if self.scope.begun else state

    def _begun(self, state: State) -> State:
        """Return the same state after broker A's first acquisition and first grant."""
        block = self.scope.block
        writes = (Write("stamp", 1, 1), Write("marker", 1, 1, 1))
        return state._replace(
            anchor=(*state.anchor, Version(1, 1, 0, block)),
            nodes=tuple(node._replace(writes=writes) for node in state.nodes),
            bindings=(*state.bindings, Binding(1, 1, 2, block, 1, create=False)),
            granted=1,
            granted_epoch=1,
        )

    def successors(self, state: State) -> Iterator[Transition]:
        if len(state.anchor) <= self.scope.versions:
            for broker in range(self.scope.brokers):
                yield from self._acquire(state, broker)
        for version in range(1, len(state.anchor)):
            for index, node in enumerate(state.nodes):
                if node.primary:
                    yield from self._write(state, version, index, node)
        if len(state.parents) < self.scope.datasets:
            for index, node in enumerate(state.nodes):
                yield from self._replace_dataset(state, index, node)
        if state.notes < self.scope.notes:
            yield from self._identify(state)
        yield from self._resync(state)
        if state.flushed < self.scope.flushes:
            yield from self._flush(state)

    # ---- Brokers: read the anchor, look at the store, compare and set -------------------------

    def _acquire(self, state: State, broker: int) -> Iterator[Transition]:
        newest = len(state.anchor) - 1
        if newest == 0 and broker > 0:
            return  # Brokers are interchangeable: the first one is always A.
        attempt = state.attempts[broker]
        if attempt is None or attempt.version != newest:
            fresh = Attempt(newest)
            if self.scope.reads_apart:
                yield (
                    Action("read", broker=broker, version=newest),
                    self._attempting(state, broker, fresh),
                )
            else:
                yield from self._observe(state, broker, fresh)
        if attempt is None:
            return
        if not attempt.replid:
            yield from self._observe(state, broker, attempt)
            return
        if attempt.adopt and not self.rules.stamp_after and not attempt.announced:
            generation = state.anchor[attempt.version].generation + 1
            for index, node in enumerate(state.nodes):
                if node.primary and node.replid == attempt.replid:
                    yield (
                        Action("announce", index, broker, number=generation),
                        self._attempting(
                            _written(state, node.replid, Write("generation", generation)),
                            broker,
                            attempt._replace(announced=True),
                        ),
                    )
            return
        if attempt.version != newest:
            yield (
                Action("lose", broker=broker, version=attempt.version),
                self._attempting(state, broker, None),
            )
        elif self.rules.registered or not self._needs_nothing(state, broker):
            yield self._win(state, broker, attempt)
        elif self.rules.replid_guard:
            yield self._rebind(state, broker, attempt)

    def _observe(self, state: State, broker: int, attempt: Attempt) -> Iterator[Transition]:
        for index, node in enumerate(state.nodes):
            if node.primary and (how := self.adoptable(state, attempt.version, node)):
                seen = view(node.writes)
                if self._is_unborn(seen):
                    yield self._bear(state, index, broker, attempt)
                    continue
                adopt = self.rules.registered and how != "the registered one"
                if self.rules.registered and not adopt and self._needs_nothing(state, broker):
                    continue
                yield (
                    Action("observe", index, broker, detail=f"replid {node.replid}, {how}"),
                    self._attempting(
                        state,
                        broker,
                        attempt._replace(
                            replid=node.replid,
                            adopt=adopt,
                            empty=not seen.generation,
                            birthmark=seen.birthmark,
                        ),
                    ),
                )

    def _identify(self, state: State) -> Iterator[Transition]:
        """A broker, not important which, notes a replid that it has observed. It need not acquire anything."""
        for index, node in enumerate(state.nodes):
            if not node.primary:
                continue
            replids = {node.replid} if self.rules.note_checked else range(1, len(state.parents) + 1)
            for replid in replids:
                if replid != view(node.writes).identity:
                    noted = _written(state, node.replid, Write("identity", replid))
                    yield (
                        Action("identify", index, number=replid),
                        noted._replace(notes=state.notes + 1),
                    )

    def _is_unborn(self, seen: View) -> bool:
        marks = self.rules.birthmarked and self.scope.flushes > 0
        return marks and not seen.generation and not seen.birthmark

    def _bear(self, state: State, index: int, broker: int, attempt: Attempt) -> Transition:
        """The action is executed once, so its time does not matter, only which node received it."""
        number = state.births + 1
        marked = _written(state, state.nodes[index].replid, Write("birth", number))
        return (
            Action("bear", index, broker, number=number),
            self._attempting(marked._replace(births=number), broker, attempt),
        )

    def _needs_nothing(self, state: State, broker: int) -> bool:
        """An owner with ledgers left opens the next one without reading the anchor."""
        own = state.bindings[-1]
        return (
            not self.scope.needless
            and state.anchor[-1].owner == broker
            and own.following <= own.end
        )

    def adoptable(self, state: State, version: int, node: Node) -> str:
        """Return why a broker that read ``version`` may not bind to this node; empty if it may."""
        record = state.anchor[version]
        if not self.rules.registered:
            return "taken as it is"
        if not record.replid:
            return "" if view(node.writes).generation else "the first one"
        if state.granted and not view(node.writes).generation:
            return ""  # it was in use and was emptied: an operator must decide
        if node.replid == record.replid:
            return "the registered one"
        if self.rules.by_anything:
            return "taken as it is"
        past = {earlier.replid for earlier in state.anchor[: version + 1]}
        if self.rules.past_refused and node.replid in past:
            return ""
        if self.rules.by_previous and node.previous == record.replid:
            return "its replid2 is the registered one"
        if self.rules.by_generation and view(node.writes).generation == record.generation:
            return f"it carries generation {record.generation}"
        if self.rules.by_note and view(node.writes).identity == record.replid:
            return "its note is the registered replid"
        return ""

    def _attempting(self, state: State, broker: int, attempt: Attempt | None) -> State:
        attempts = (*state.attempts[:broker], attempt, *state.attempts[broker + 1 :])
        return state._replace(attempts=attempts)

    def _win(self, state: State, broker: int, attempt: Attempt) -> Transition:
        record, own = state.anchor[-1], state.bindings[-1]
        goes_on = record.owner == broker
        high_water = record.high_water + self.scope.block
        first = record.high_water + 1
        if not self.rules.fresh_block:
            for number in range(len(state.anchor) - 1, 0, -1):
                left = state.bindings[number]
                if state.anchor[number].owner == broker and left.following <= left.end:
                    first, high_water = left.following, record.high_water
                    break
        binding = Binding(
            attempt.replid,
            first,
            first,
            high_water if first > record.high_water else left.end,
            own.epoch if goes_on else 0,
            attempt.empty,
            attempt.birthmark,
        )
        version = Version(record.generation + attempt.adopt, attempt.replid, broker, high_water)
        return (
            Action(
                "acquire",
                broker=broker,
                version=len(state.anchor),
                detail=f"generation {version.generation}, replid {version.replid}, "
                f"ledgers {binding.first} to {binding.end}",
            ),
            state._replace(
                anchor=(*state.anchor, version),
                bindings=(*state.bindings, binding),
                attempts=tuple(
                    None if index == broker else self._overtaken(state, other)
                    for index, other in enumerate(state.attempts)
                ),
            ),
        )

    def _overtaken(self, state: State, attempt: Attempt | None) -> Attempt | None:
        """Drop an attempt whose version is no longer the newest.

        It can only lose its compare-and-set, which changes nothing, so it is dropped at once, unless it may
        still write to a node before the compare-and-set.
        """
        if self.rules.stamp_after or len(state.anchor) >= self.scope.versions:
            return None
        return attempt

    def _rebind(self, state: State, broker: int, attempt: Attempt) -> Transition:
        """Level 2: the owner follows the store to another dataset without asking the anchor."""
        binding = state.bindings[-1]._replace(replid=attempt.replid)
        return (
            Action("rebind", broker=broker, detail=f"replid {attempt.replid}"),
            self._attempting(
                state._replace(bindings=(*state.bindings[:-1], binding)), broker, None
            ),
        )

    # ---- The scripts: the effect of a binding's commands when a node executes them ------------

    def _write(self, state: State, version: int, index: int, node: Node) -> Iterator[Transition]:
        rules, binding, record = self.rules, state.bindings[version], state.anchor[version]
        if rules.replid_guard and node.replid != binding.replid:
            return
        act = Action("", index, record.owner, version)
        seen = view(node.writes)
        if rules.registered and seen.stamped != version:
            late = seen.stamped > version or seen.generation > record.generation
            gone = not seen.generation and not (
                binding.create and binding.birthmark == seen.birthmark
            )
            if not (late and rules.late_stamp_refused) and not (gone and rules.empty_stamp_refused):
                stamp = Write("stamp", version, record.generation)
                yield act._replace(kind="stamp"), _written(state, node.replid, stamp)
        if not self.guarded(state, version, seen):
            return
        unopened = binding.following == binding.first
        if rules.registered and unopened and not binding.epoch and self._stamped(node, version):
            current = seen.marker_generation == record.generation
            epoch = seen.epoch if current or not rules.careful_resume else 0
            if epoch:
                yield (
                    act._replace(kind="recover", number=epoch),
                    _bound(state, version, binding._replace(epoch=epoch)),
                )
        ledger = binding.following
        if ledger <= binding.end and seen.ledger < ledger:
            yield self._opened(state, act._replace(kind="grant", number=ledger), ledger)
            if binding.epoch:
                detail = f"keeping topic epoch {binding.epoch}"
                yield self._opened(
                    state, act._replace(kind="keep", number=ledger, detail=detail), binding.epoch
                )
        if not seen.stale:
            yield from self._stale_writes(state, act, node, seen)

    @staticmethod
    def _stamped(node: Node, version: int) -> bool:
        return any(write.kind == "stamp" and write.number == version for write in node.writes)

    def guarded(self, state: State, version: int, seen: View) -> bool:
        """Return whether the bucket's record accepts this binding's write. Its dataset is right already."""
        record = state.anchor[version]
        if self.rules.generation_check and seen.generation > record.generation:
            return False
        match self.rules.owner_check:
            case "nothing":
                return True
            case "owner":
                return seen.stamped > 0 and state.anchor[seen.stamped].owner == record.owner
            case "version":
                return seen.stamped == version

    def _opened(self, state: State, action: Action, epoch: int) -> Transition:
        """A marker was written. Its answer is the grant, unless the broker no longer waits for it.

        A process that acquired the bucket again does not act for the binding that it replaced.
        """
        binding, record = state.bindings[action.version], state.anchor[action.version]
        marker = Write("marker", binding.following, record.generation, epoch)
        after = _bound(
            _written(state, state.nodes[action.node].replid, marker),
            action.version,
            binding._replace(following=binding.following + 1, epoch=epoch),
        )
        if any(later.owner == record.owner for later in state.anchor[action.version + 1 :]):
            return action, after
        return action, after._replace(
            granted=max(state.granted, binding.following),
            granted_epoch=max(state.granted_epoch, epoch),
        )

    def _stale_writes(
        self, state: State, act: Action, node: Node, seen: View
    ) -> Iterator[Transition]:
        """Yield the accepted writes that should have been refused, if this branch counts.

        A cursor or catalog write is judged where it is executed and leaves no mark. With the token in force it
        passes only where an append would, and the append leaves its mark.
        """
        binding = state.bindings[act.version]
        spoilt = _written(state, node.replid, Write("stale", 0))
        for ledger in range(binding.first, binding.following):
            epoch = seen.epoch_of(ledger)
            if ledger >= state.granted and epoch >= state.granted_epoch:
                continue
            if self.rules.token_check and seen.ledger != ledger:
                continue
            detail = "ledger" if ledger < state.granted else "epoch"
            if seen.ledger <= ledger:  # the order of IDs, which protects appends only
                yield act._replace(kind="append", number=ledger, detail=detail), spoilt
            yield act._replace(kind="cursor", number=ledger, detail=detail), state
        if self.rules.registered and any(
            state.anchor[later].owner != act.broker and self._stamped(node, later)
            for later in range(act.version + 1, len(state.anchor))
        ):
            # "regained": see EARLIER_OWNERSHIP in storage_properties.
            regained = state.anchor[seen.stamped].owner == act.broker
            yield act._replace(kind="catalog", detail="regained" if regained else "deposed"), state

    # ---- The store: promotions, restarts, resynchronisation -----------------------------------

    def _replace_dataset(self, state: State, index: int, node: Node) -> Iterator[Transition]:
        replid = len(state.parents) + 1
        grown = state._replace(parents=(*state.parents, node.replid))
        for count in range(0 if self.scope.losses else len(node.writes), len(node.writes) + 1):
            writes = node.writes[:count]
            act = Action("promote", index, number=count)
            if not node.primary:
                promoted = Node(True, replid, node.replid, writes)
                yield act, _placed(grown, index, promoted)._replace(elected=self._elected(index))
                continue
            act = act._replace(kind="restart")
            yield (
                act._replace(detail="its append-only file (or loses its backlog)"),
                _placed(grown, index, node._replace(replid=replid, previous=0, writes=writes)),
            )
            yield (
                act._replace(detail="a snapshot"),
                _placed(
                    grown, index, node._replace(replid=replid, previous=node.replid, writes=writes)
                ),
            )

    def _flush(self, state: State) -> Iterator[Transition]:
        """An operator empties a live dataset: FLUSHALL changes no replid, and replicas follow."""
        for index, node in enumerate(state.nodes):
            if node.primary and node.writes:
                emptied = _written(state, node.replid, Write("flush", 0))
                yield Action("flush", index), emptied._replace(flushed=state.flushed + 1)

    def _elected(self, index: int) -> int:
        """The choice of the surviving node matters only if no registration names the dataset that counts."""
        return 0 if self.rules.registered else index

    def _resync(self, state: State) -> Iterator[Transition]:
        """A node is configured to follow a primary: the stale one the elected one, or either way."""
        for index, node in enumerate(state.nodes):
            for source, primary in enumerate(state.nodes):
                if source == index or not primary.primary or node.replid == primary.replid:
                    continue
                if not self.rules.registered and source != state.elected:
                    continue
                replica = primary._replace(primary=False, previous=0)
                yield (
                    Action("resync", index, detail=f"node {source}"),
                    _placed(state, index, replica),
                )


def _placed(state: State, index: int, node: Node) -> State:
    return state._replace(nodes=(*state.nodes[:index], node, *state.nodes[index + 1 :]))


def _written(state: State, replid: int, write: Write) -> State:
    """The write reaches the primary and, as far as can be observed, its linked replicas."""
    nodes = tuple(
        node._replace(writes=(*node.writes, write)) if node.replid == replid else node
        for node in state.nodes
    )
    return state._replace(nodes=nodes)


def _bound(state: State, version: int, binding: Binding) -> State:
    bindings = (*state.bindings[:version], binding, *state.bindings[version + 1 :])
    return state._replace(bindings=bindings)
