"""A bucket on a Valkey Cluster as a model: promotions, lost volumes, moved hash slots, and what was acknowledged.

storage_protocol is the model of the fence: one topic, one dataset at a time, every step apart. This model is about
what a cluster adds (docs/adr/0023): which dataset may follow the registered one, what an acknowledgement is worth
under each durability profile, and whether a loss is known afterwards.

How it is modelled
------------------
* One bucket with one log. A shard has a primary and replicas; a second shard exists if the bucket may move to it.
* A node is its role, its replid, its replid2 and the writes that it executed. ``held`` is the number of writes that
  a replica is known to have, because it has completed a copy or answered a WAIT. The model chooses late how many of the
  others it has: at its promotion.
* A primary that restarted has no replication backlog. When its first replica copies it, it gets another replid, and no
  replid2.
* A primary that was deposed keeps running and executes writes, without limit. A crash is a primary that executes
  nothing more.
* Each acquisition (``Version`` of the anchor) gets one ledger, its own number. Reading the anchor, observing the node
  and the compare-and-set are one step, as are the stamp and the marker: storage_protocol has them apart. Every
  other step may happen at any later time, so an owner of the past is a zombie.
* ``acknowledged`` is a ghost: every entry that any broker has acknowledged to any client.

The owner's memory is modelled, because reports of losses depend on it: ``Binding.known`` are the entries that the
process knows to be acknowledged, or -1 if it has not opened the log yet.

Not modelled: several logs, retries of entries whose result is unknown (cluster_calls), topic epochs
(storage_protocol), which brokers count as dead (shard_membership).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Literal, NamedTuple

Profile = Literal["Local", "Replicated", "AllReplicas"]

UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules in force. The defaults are the protocol; a variant omits one of them.

    ``past_needs_proof``: a dataset that was registered before returns only with the record's generation.
    ``needs_proof``: a dataset without proof is refused.
    ``replicas_first``: a dataset with no other proof than its generation is registered after its replicas have it.
    ``empty_leaves``: a process that lost its data returns without its hash slots.
    ``empty_is_refused``: a dataset without a record of the bucket is refused.
    ``wait_on_writer``: WAIT is asked on the connection that carried the writes.
    ``counts_known``: AllReplicas waits for every replica that the cluster knows, not for the configured number.
    ``reports_first``: a report of losses is written before the first append.
    ``reports_again``: an owner repeats its reports if the dataset changes again.
    ``range_after_entry``: a range at risk begins after the last entry, not after the last marker.
    ``note_after_reports``: a log is noted as settled after its reports are written.
    ``note_is_dated``: a note counts only in the registration of the dataset in which it was written.
    ``identity_noted``: the dataset itself notes its replid before the anchor registers it.
    ``identity_checked``: a note of a replid is executed only by the dataset that has it.
    """

    past_needs_proof: bool = True
    needs_proof: bool = True
    replicas_first: bool = True
    empty_leaves: bool = True
    empty_is_refused: bool = True
    wait_on_writer: bool = True
    counts_known: bool = True
    reports_first: bool = True
    reports_again: bool = True
    range_after_entry: bool = True
    note_after_reports: bool = True
    note_is_dated: bool = True
    identity_noted: bool = True
    identity_checked: bool = True


PROTOCOL = Rules()


@dataclass(frozen=True, slots=True)
class Scope:
    """The bounds of the search, and the profile of the topic.

    ``replicas``: the configured number. ``replaced``: replicas beyond it, which were replaced but not forgotten.
    ``versions``: acquisitions, including the first one, after which the search starts. ``promotions``, ``restarts``
    (with the data), ``volumes`` (lost, of a primary), ``moves`` (of the bucket's hash slot) and ``entries`` bound
    what happens. ``replicas_return``: replicas are in sync within the time for which a registration waits for them,
    and a deposed primary does not restart as a primary. ``late_notes``: brokers also note a dataset's replid without
    registering it, at any time. Notes in the model name no generation, so they prove more than those of brokers. Without
    restarts the model omits notes of a replid, because ``replid2`` proves as much.
    """

    profile: Profile = "Local"
    replicas: int = 1
    replaced: int = 0
    shards: int = 1
    versions: int = 3
    entries: int = 2
    promotions: int = 1
    restarts: int = 0
    volumes: int = 0
    moves: int = 0
    replicas_return: bool = False
    late_notes: bool = False

    @property
    def known(self) -> int:
        """Replicas of each shard that the cluster knows, and may promote."""
        return self.replicas + self.replaced

    @property
    def is_loss_free(self) -> bool:
        """Whether the profile promises that a promotion loses nothing acknowledged."""
        return self.profile == "AllReplicas" or (self.profile == "Replicated" and self.known == 1)


class Range(NamedTuple):
    """A range at risk: positions after ``ledger`` and ``entry``, in ledgers up to ``until``."""

    ledger: int
    entry: int
    until: int


class Report(NamedTuple):
    """What a broker reports as lost: a set of entries, as bits, and ranges."""

    lost: int = 0
    ranges: tuple[Range, ...] = ()


NOTHING = Report()


class Write(NamedTuple):
    """One write as a node executed it.

    ``stamp``: number = version. ``marker``: number = ledger. Both have the generation. ``entry``: number = entry,
    with its ledger; ``stale`` (ghost): a newer ledger was granted. ``report``: a Report with its generation. ``note``: the
    log's losses are known in its generation. ``identity``: number = replid. ``moved`` away; ``import``: the content that
    a move brought.
    """

    kind: Literal["stamp", "marker", "entry", "report", "note", "identity", "moved", "import"]
    number: int = 0
    generation: int = 0
    ledger: int = 0
    stale: bool = False
    report: Report = NOTHING
    content: tuple[Write, ...] = ()


class Node(NamedTuple):
    """One process. ``role`` "none": it has neither data nor hash slots. ``backlog``: its next replica changes nothing."""

    shard: int
    role: Literal["primary", "replica", "none"]
    replid: int
    previous: int
    writes: tuple[Write, ...]
    held: int
    backlog: bool = True


class Version(NamedTuple):
    """One version of the anchor's record."""

    generation: int
    replid: int
    owner: int


class Binding(NamedTuple):
    """What a broker process knows since one acquisition. ``unreported``: what it must report before it appends."""

    known: int
    opened: bool = False
    unreported: Report = NOTHING
    reported: Report = NOTHING


class State(NamedTuple):
    anchor: tuple[Version, ...]
    bindings: tuple[Binding, ...]
    nodes: tuple[Node, ...]
    serving: tuple[int, ...]
    home: int
    ledgers: tuple[int, ...]
    acknowledged: int
    granted: int
    replids: int
    promotions: int = 0
    restarts: int = 0
    volumes: int = 0
    moves: int = 0

    def primary(self) -> Node | None:
        """The node that serves the bucket according to the cluster's vote."""
        index = self.serving[self.home]
        return self.nodes[index] if index >= 0 else None


class Action(NamedTuple):
    """One action, as data for properties and as a line of a counter-example."""

    kind: str
    node: int = -1
    version: int = -1
    number: int = 0
    detail: str = ""

    def __str__(self) -> str:
        bound = f"the owner bound by version {self.version}"
        where = f"node {self.node}"
        match self.kind:
            case "acquire":
                return f"broker {'AB'[self.number]} acquires version {self.version} on {where}: {self.detail}"
            case "open":
                return f"{bound} stamps {where} and opens ledger {self.version}"
            case "report":
                return f"{bound} reports to {where}: {self.detail}"
            case "note":
                return f"{bound} notes on {where} that the log is settled"
            case "identity":
                return f"a broker notes on {where} that its replid is {self.number}"
            case "append":
                return f"{bound} appends entry {self.number} on {where}{self.detail}"
            case "wait":
                return f"{bound} has its entries on {where} confirmed{self.detail}"
            case "promote":
                return f"{where} is promoted with {self.number} writes"
            case "restart":
                return f"{where} restarts with its data"
            case "volume":
                return f"{where} loses its volume and returns{self.detail}"
            case "move":
                return f"the bucket's hash slot moves to {where}"
            case _:
                return f"{where} completes a copy of its primary"


Transition = tuple[Action, State]


class View(NamedTuple):
    """The bucket as scripts and readers find it in a dataset. ``last`` is the position of the last entry.

    ``settled``: the newest registration in which the log got an entry or a report, ``noted``: that of its note.
    ``identity``: the replid that was noted last.
    """

    generation: int = 0
    stamped: int = 0
    ledger: int = 0
    marker_generation: int = 0
    entries: int = 0
    last: tuple[int, int] = (0, 0)
    settled: int = 0
    noted: int = 0
    identity: int = 0
    stale: bool = False
    report: Report = NOTHING


@cache
def view(writes: tuple[Write, ...]) -> View:
    if not writes:
        return View()
    before, last = view(writes[:-1]), writes[-1]
    match last.kind:
        case "stamp":
            return before._replace(generation=last.generation, stamped=last.number)
        case "marker":
            return before._replace(ledger=last.number, marker_generation=last.generation)
        case "entry":
            return before._replace(
                entries=before.entries | 1 << last.number,
                last=(last.ledger, last.number),
                settled=before.marker_generation,
                stale=before.stale or last.stale,
            )
        case "report":
            return before._replace(
                settled=last.generation, report=joined(before.report, last.report)
            )
        case "note":
            return before._replace(noted=last.generation)
        case "identity":
            return before._replace(identity=last.number)
        case "moved":
            return View()
        case "import":
            return view(last.content)


def joined(one: Report, other: Report) -> Report:
    added = tuple(each for each in other.ranges if each not in one.ranges)
    return Report(one.lost | other.lost, one.ranges + added)


def is_reported(report: Report, ledger: int, entry: int) -> bool:
    """Whether a report names this entry, or a range that contains it."""
    return bool(report.lost >> entry & 1) or any(
        (ledger, entry) > (each.ledger, each.entry) and ledger <= each.until
        for each in report.ranges
    )


@dataclass(frozen=True, slots=True)
class ClusterProtocol:
    """The model. ``Rules`` select the checks, ``Scope`` sets the bounds."""

    rules: Rules = PROTOCOL
    scope: Scope = Scope()

    def initial(self) -> Iterator[State]:
        """Return the state after broker A has acquired the bucket, stamped it and opened its first ledger."""
        writes = (Write("stamp", 1, 1), Write("marker", 1, 1))
        nodes: list[Node] = []
        for shard in range(self.scope.shards):
            own = writes if shard == 0 else ()
            nodes.append(Node(shard, "primary", shard + 1, 0, own, 0))
            replica = Node(shard, "replica", shard + 1, 0, own, len(own))
            nodes += [replica] * self.scope.known
        size = self.scope.known + 1
        yield State(
            anchor=(Version(0, 0, -1), Version(1, 1, 0)),
            bindings=(Binding(UNKNOWN), Binding(0, opened=True)),
            nodes=tuple(nodes),
            serving=tuple(shard * size for shard in range(self.scope.shards)),
            home=0,
            ledgers=(),
            acknowledged=0,
            granted=1,
            replids=self.scope.shards,
        )

    def successors(self, state: State) -> Iterator[Transition]:
        for index, node in enumerate(state.nodes):
            if node.role == "primary":
                if len(state.anchor) <= self.scope.versions:
                    yield from self._acquire(state, index, node)
                for version in range(1, len(state.anchor)):
                    if state.anchor[version].replid == node.replid:
                        yield from self._write(state, version, index, node)
                yield from self._note_identity(state, index, node)
            yield from self._fail(state, index, node)
            yield from self._copy(state, index, node)
        yield from self._move(state)

    @property
    def needed(self) -> int:
        """Replicas that WAIT needs."""
        every = self.scope.known if self.rules.counts_known else self.scope.replicas
        return {"Local": 0, "Replicated": 1, "AllReplicas": every}[self.scope.profile]

    # ---- Brokers ------------------------------------------------------------------------------

    def proof(self, state: State, node: Node) -> str:
        """Return why a broker may bind to this node under the newest record; empty if it may not."""
        rules, record, seen = self.rules, state.anchor[-1], view(node.writes)
        if not seen.generation and rules.empty_is_refused:
            return ""
        if node.replid == record.replid:
            return "the registered one"
        has_generation = seen.generation == record.generation
        if any(earlier.replid == node.replid for earlier in state.anchor):
            if not rules.past_needs_proof:
                return "registered before"
            return "registered before, with the generation" if has_generation else ""
        if has_generation:
            return "the generation"
        if node.previous == record.replid:
            return "replid2"
        if seen.identity == record.replid:
            return "the note"
        return "" if rules.needs_proof else "none"

    def _note_identity(self, state: State, index: int, node: Node) -> Iterator[Transition]:
        """A broker that has observed this dataset, or one with another replid, notes its replid late."""
        if not self.scope.late_notes:
            return
        noted = view(node.writes).identity
        seen = {version.replid for version in state.anchor if version.replid} | {node.replid}
        for replid in sorted({node.replid} if self.rules.identity_checked else seen):
            if replid != noted:
                after = _written(state, node, Write("identity", replid))
                yield Action("identity", index, number=replid), after

    def _acquire(self, state: State, index: int, node: Node) -> Iterator[Transition]:
        why, newest = self.proof(state, node), state.anchor[-1]
        if not why:
            return
        is_registered = why == "the registered one"
        if self.rules.identity_noted and self.scope.restarts and not is_registered:
            state = _written(state, node, Write("identity", node.replid))
            node = state.nodes[index]
        waits = self.rules.replicas_first and self.scope.replicas_return
        if waits and not is_registered and node.previous != newest.replid:
            if len(linked := self._linked(state, node)) < self.scope.known:
                return
            state = self._confirmed(state, node, linked)
        for broker in range(2):
            continues = newest.owner == broker
            if continues and is_registered:
                continue  # it holds the bucket already
            former = state.bindings[-1]
            reported = former.reported if self.rules.reports_again else NOTHING
            binding = Binding(
                former.known if continues else UNKNOWN,
                reported=reported if continues else NOTHING,
                unreported=former.unreported if continues else NOTHING,
            )
            version = Version(newest.generation + (not is_registered), node.replid, broker)
            yield (
                Action("acquire", index, len(state.anchor), broker, why),
                state._replace(
                    anchor=(*state.anchor, version), bindings=(*state.bindings, binding)
                ),
            )

    def _write(self, state: State, version: int, index: int, node: Node) -> Iterator[Transition]:
        binding, record, seen = state.bindings[version], state.anchor[version], view(node.writes)
        acts = not any(later.owner == record.owner for later in state.anchor[version + 1 :])
        if seen.stamped < version and seen.generation <= record.generation and not binding.opened:
            if seen.generation or not self.rules.empty_is_refused:
                yield self._open(state, version, index, node)
            return
        if seen.stamped != version or seen.ledger != version:
            return
        is_unreported = binding.unreported != NOTHING
        if is_unreported and acts:
            told = joined(binding.reported, binding.unreported)
            after = binding._replace(unreported=NOTHING, reported=told)
            written = _written(state, node, Write("report", 0, record.generation, 0, False, told))
            detail = f"lost {binding.unreported.lost:b}, ranges {binding.unreported.ranges}"
            yield (
                Action("report", index, version, detail=detail),
                _bound(written, version, after),
            )
        if not is_unreported or not self.rules.note_after_reports:
            yield from self._note(state, version, index, node, acts=acts)
        if is_unreported and self.rules.reports_first:
            return
        if len(state.ledgers) < self.scope.entries:
            yield self._append(state, version, index, node, acts=acts)
        if acts and self.needed:
            yield from self._wait(state, version, index, node)

    def _note(
        self, state: State, version: int, index: int, node: Node, *, acts: bool
    ) -> Iterator[Transition]:
        """Note once that the losses of the log are known, so that a later takeover states no range at risk."""
        generation, seen = state.anchor[version].generation, view(node.writes)
        if acts and generation > 1 and max(seen.settled, seen.noted) < generation:
            note = Write("note", 0, generation)
            yield Action("note", index, version), _written(state, node, note)

    def _open(self, state: State, version: int, index: int, node: Node) -> Transition:
        """Stamp, write the marker, and compare the log with what the process knows."""
        binding, record, seen = state.bindings[version], state.anchor[version], view(node.writes)
        written = _written(state, node, Write("stamp", version, record.generation))
        written = _written(
            written, written.nodes[index], Write("marker", version, record.generation)
        )
        missing = joined(binding.reported, binding.unreported)
        if binding.known == UNKNOWN:
            if not self._is_settled(seen, record) and record.generation > 1:
                ledger, entry = seen.last
                if not self.rules.range_after_entry and seen.ledger > ledger:
                    ledger, entry = seen.ledger, 0
                missing = joined(missing, Report(0, (Range(ledger, entry, version - 1),)))
            known = seen.entries
        else:
            known = binding.known
            missing = joined(missing, Report(known & ~seen.entries))
        is_there = joined(seen.report, missing) == seen.report
        after = Binding(
            known & seen.entries, True, NOTHING if is_there else missing, binding.reported
        )
        return (
            Action("open", index, version),
            _bound(written, version, after)._replace(granted=max(state.granted, version)),
        )

    def _is_settled(self, seen: View, record: Version) -> bool:
        """Whether a broker has compared the log in the present registration of the dataset."""
        if seen.noted and not self.rules.note_is_dated:
            return True
        return max(seen.settled, seen.noted) >= record.generation

    def _append(
        self, state: State, version: int, index: int, node: Node, *, acts: bool
    ) -> Transition:
        number = len(state.ledgers)
        stale = version < state.granted
        entry = Write("entry", number, 0, version, stale)
        after = _written(state, node, entry)._replace(ledgers=(*state.ledgers, version))
        action = Action("append", index, version, number, ", stale" if stale else "")
        if acts and not self.needed:
            return action, self._acknowledged(after, version, 1 << number)
        return action, after

    def _wait(self, state: State, version: int, index: int, node: Node) -> Iterator[Transition]:
        """Acknowledge the entries of this ledger that enough replicas have."""
        own = sum(1 << number for number, ledger in enumerate(state.ledgers) if ledger == version)
        own &= view(node.writes).entries & ~state.acknowledged
        if not own:
            return
        if not self.rules.wait_on_writer:
            yield (
                Action("wait", index, version, detail=", on another connection"),
                self._acknowledged(state, version, own),
            )
            return
        for replicas in combinations(self._linked(state, node), self.needed):
            confirmed = self._confirmed(state, node, replicas)
            yield (
                Action("wait", index, version, detail=f" by {replicas}"),
                self._acknowledged(confirmed, version, own),
            )

    @staticmethod
    def _acknowledged(state: State, version: int, entries: int) -> State:
        binding = state.bindings[version]
        after = _bound(state, version, binding._replace(known=binding.known | entries))
        return after._replace(acknowledged=state.acknowledged | entries)

    @staticmethod
    def _linked(state: State, node: Node) -> tuple[int, ...]:
        return tuple(
            index
            for index, other in enumerate(state.nodes)
            if other.role == "replica" and other.replid == node.replid
        )

    @staticmethod
    def _confirmed(state: State, node: Node, replicas: tuple[int, ...]) -> State:
        for index in replicas:
            state = _placed(state, index, state.nodes[index]._replace(held=len(node.writes)))
        return state

    # ---- The store ----------------------------------------------------------------------------

    def _fail(self, state: State, index: int, node: Node) -> Iterator[Transition]:
        scope, replid = self.scope, state.replids + 1
        serves = state.serving[node.shard] == index
        if node.role == "replica" and state.promotions < scope.promotions:
            grown = state._replace(promotions=state.promotions + 1, replids=replid)
            for count in range(node.held, len(node.writes) + 1):
                writes = node.writes[:count]
                if node.shard != state.home:  # it answers MOVED, and removes what it has
                    writes = (*writes, Write("moved"))
                promoted = Node(node.shard, "primary", replid, node.replid, writes, 0)
                yield (
                    Action("promote", index, number=count),
                    _serving(_placed(grown, index, promoted), node.shard, index),
                )
        if (
            node.role == "primary"
            and state.restarts < scope.restarts
            and (serves or not scope.replicas_return)
        ):
            grown = state._replace(restarts=state.restarts + 1, replids=replid)
            again = node._replace(replid=replid, previous=0, backlog=False)
            yield Action("restart", index), _placed(grown, index, again)
        if serves and state.volumes < scope.volumes:
            grown = state._replace(volumes=state.volumes + 1, replids=replid)
            if self.rules.empty_leaves:
                gone = Node(node.shard, "none", 0, 0, (), 0)
                yield (
                    Action("volume", index, detail=" without hash slots"),
                    _serving(_placed(grown, index, gone), node.shard, -1),
                )
            else:
                empty = Node(node.shard, "primary", replid, 0, (), 0)
                yield (
                    Action("volume", index, detail=" as the primary"),
                    _placed(grown, index, empty),
                )

    def _copy(self, state: State, index: int, node: Node) -> Iterator[Transition]:
        """A node that does not serve becomes a replica of the one that does, and completes its copy."""
        source = state.serving[node.shard]
        if source in {-1, index}:
            return
        primary = state.nodes[source]
        if node.role == "replica" and node.replid == primary.replid:
            return
        if not primary.backlog:
            state = state._replace(replids=state.replids + 1)
            primary = primary._replace(replid=state.replids, previous=0, backlog=True)
            state = _placed(state, source, primary)
        replica = primary._replace(role="replica", previous=0, held=len(primary.writes))
        yield Action("copy", index), _placed(state, index, replica)

    def _move(self, state: State) -> Iterator[Transition]:
        source = state.primary()
        if source is None or state.moves >= self.scope.moves or not view(source.writes).generation:
            return
        for shard, index in enumerate(state.serving):
            if shard == state.home or index < 0:
                continue
            content = Write("import", content=_present(source.writes))
            after = _written(state, state.nodes[index], content)
            after = _written(after, source, Write("moved"))
            yield Action("move", index), after._replace(home=shard, moves=state.moves + 1)


def _present(writes: tuple[Write, ...]) -> tuple[Write, ...]:
    """Return the writes that make up the bucket's content."""
    for index in range(len(writes) - 1, -1, -1):
        if writes[index].kind == "import":
            return writes[index].content + writes[index + 1 :]
    return writes


def _placed(state: State, index: int, node: Node) -> State:
    return state._replace(nodes=(*state.nodes[:index], node, *state.nodes[index + 1 :]))


def _serving(state: State, shard: int, index: int) -> State:
    serving = (*state.serving[:shard], index, *state.serving[shard + 1 :])
    return state._replace(serving=serving)


def _written(state: State, primary: Node, write: Write) -> State:
    """The write reaches the primary and, as far as can be observed, its linked replicas."""
    nodes = tuple(
        node._replace(writes=(*node.writes, write)) if node.replid == primary.replid else node
        for node in state.nodes
    )
    return state._replace(nodes=nodes)


def _bound(state: State, version: int, binding: Binding) -> State:
    bindings = (*state.bindings[:version], binding, *state.bindings[version + 1 :])
    return state._replace(bindings=bindings)
