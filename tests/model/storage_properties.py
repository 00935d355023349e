"""Properties of the storage protocol: what must hold, and what a model must reach so that this means anything.

Each property carries the number of the invariant that it states (docs/invariants.md, "storage").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tests.model.explorer import Always, Sometimes, Step
from tests.model.storage_protocol import StorageProtocol
from tests.model.storage_state import Action, Node, Rules, State, view

StorageAlways = Always[State]
StorageStep = Step[State, Action]
StorageSometimes = Sometimes[State, Action]


def counting(rules: Rules, state: State) -> list[Node]:
    """Return the nodes whose history is the topic's history now."""
    if rules.registered:
        return [node for node in state.nodes if node.replid == state.anchor[-1].replid]
    return [state.nodes[state.elected]]


def _counts(rules: Rules, state: State, action: Action) -> bool:
    return state.nodes[action.node] in counting(rules, state)


def always(rules: Rules) -> list[StorageAlways]:
    """Return the invariants of single states."""

    def fenced(state: State) -> bool:
        return not any(view(node.writes).stale for node in counting(rules, state))

    def unique(state: State) -> bool:
        bindings = list(zip(state.bindings[1:], state.anchor[1:], strict=True))
        return all(
            one.end < other.first or other.end < one.first
            for number, (one, version) in enumerate(bindings)
            for other, later in bindings[number + 1 :]
            if version.owner != later.owner
        ) and all(one.end <= state.anchor[-1].high_water for one, _ in bindings)

    def rising(state: State) -> bool:
        return all(view(node.writes).rising for node in state.nodes)

    return [
        Always("1 fencing: nothing stale stands in the dataset that counts", fenced),
        Always("2 unique ledgers: no two owners share one, none above the high water", unique),
        Always("3 marker first: ledgers rise in every dataset", rising),
    ]


def steps(rules: Rules) -> list[StorageStep]:
    """Return the invariants of single transitions."""

    def accepted_late(before: State, action: Action, after: State) -> bool:
        return action.kind != "append" or not _counts(rules, after, action)

    def deposed_harmless(before: State, action: Action, after: State) -> bool:
        late = action.kind == "cursor" or (action.kind == "catalog" and action.detail == "deposed")
        return not late or not _counts(rules, after, action)

    def never_back(before: State, action: Action, after: State) -> bool:
        return (
            after.anchor[-1].high_water >= before.anchor[-1].high_water
            and after.anchor[-1].generation >= before.anchor[-1].generation
        )

    def epoch_rises(before: State, action: Action, after: State) -> bool:
        if action.kind == "grant" and _counts(rules, after, action):
            return action.number > before.granted_epoch
        return True

    def epoch_kept(before: State, action: Action, after: State) -> bool:
        if action.kind == "keep" and _counts(rules, after, action):
            return after.bindings[action.version].epoch >= before.granted_epoch
        return True

    return [
        Step("1, 7 fencing: no append of an older ledger or epoch is accepted", accepted_late),
        Step("2 what the anchor counts never falls", never_back),
        Step("6 a deposed owner's trims, cursor and catalog writes are refused", deposed_harmless),
        Step("7 a granted epoch is above all granted before", epoch_rises),
        Step("7 an epoch is kept only if none was granted since", epoch_kept),
    ]


def registration(rules: Rules) -> list[StorageStep]:
    """Return the invariants that mean something only where datasets are registered."""

    def lineage(before: State, action: Action, after: State) -> bool:
        if action.kind != "acquire" or not before.anchor[-1].replid:
            return True
        ancestor = after.anchor[-1].replid
        while ancestor not in (0, before.anchor[-1].replid):
            ancestor = after.parents[ancestor - 1]
        return ancestor != 0

    def generation(before: State, action: Action, after: State) -> bool:
        changed = after.anchor[-1].replid != before.anchor[-1].replid
        return after.anchor[-1].generation == before.anchor[-1].generation + changed

    def binding(before: State, action: Action, after: State) -> bool:
        if action.kind not in {"stamp", "grant", "keep", "append", "cursor", "catalog"}:
            return True
        version = before.anchor[action.version]
        return (version.replid, version.owner) == (
            before.nodes[action.node].replid,
            action.broker,
        )

    return [
        Step("4 lineage: a registered dataset was cut from the one registered before", lineage),
        Step("4 each registered dataset has its own generation", generation),
        Step("5 binding: who writes was registered with this very dataset", binding),
    ]


EARLIER_OWNERSHIP = Step[State, Action](
    "6 a catalog write of an earlier ownership is refused, even of the broker that is owner again",
    lambda before, action, after: action.kind != "catalog" or action.detail != "regained",
)
"""Stricter than invariant 6. Holds only if writes compare the stamp's version instead of its owner."""


def sometimes(model: StorageProtocol) -> list[StorageSometimes]:
    """Return what a run within any scope of three versions and three datasets must reach."""
    return [
        Sometimes("a CAS is lost", _cas_is_lost),
        Sometimes("a broker dies between its CAS and its stamp, and is replaced", _dies_early),
        Sometimes("a takeover after the promotion of a replica that lagged", _lagging_takeover),
        Sometimes("a dataset adopted because its replid2 is the registered one", _by_previous),
        Sometimes("the dataset adopted was promoted twice in a row", _twice_promoted),
        RECOVERY,
        Sometimes("a late stamp reaches the dataset that counts", _late_stamp),
        Sometimes("a late fence reaches the dataset that counts", _late_fence),
        Sometimes("a zombie's append reaches the dataset that counts", _late_append),
        Sometimes("a stale master accepts a zombie's append", _dead_branch),
        Sometimes("a holder keeps its epoch at the broker that takes over", _resume_elsewhere),
        Sometimes("a holder keeps its epoch though its marker was lost", _resume_from_memory),
        Sometimes("an epoch found in the log is not trusted", _distrusted),
        Sometimes("a dataset of no known descent is refused", _refuses(model)),
    ]


def _adopts(before: State, action: Action) -> int:
    """Return the replid that this action registers in place of another one, or 0 if it registers none."""
    if action.kind != "acquire" or not before.anchor[-1].replid:
        return 0
    attempt = before.attempts[action.broker]
    return attempt.replid if attempt is not None and attempt.adopt else 0


def _adopted(before: State, action: Action) -> Node | None:
    replid = _adopts(before, action)
    return next((node for node in before.nodes if node.primary and node.replid == replid), None)


def _cas_is_lost(before: State, action: Action, after: State) -> bool:
    return action.kind == "acquire" and any(
        attempt is not None and broker != action.broker
        for broker, attempt in enumerate(before.attempts)
    )


def _dies_early(before: State, action: Action, after: State) -> bool:
    newest = len(before.anchor) - 1
    return (
        action.kind == "acquire"
        and before.anchor[newest].owner not in (-1, action.broker)
        and not any(
            write.kind == "stamp" and write.number == newest
            for node in before.nodes
            for write in node.writes
        )
    )


def _lagging_takeover(before: State, action: Action, after: State) -> bool:
    node = _adopted(before, action)
    return (
        node is not None
        and action.broker != before.anchor[-1].owner
        and node.previous == before.anchor[-1].replid
        and view(node.writes).ledger < before.granted
    )


def _by_previous(before: State, action: Action, after: State) -> bool:
    node = _adopted(before, action)
    return node is not None and node.previous == before.anchor[-1].replid


def _twice_promoted(before: State, action: Action, after: State) -> bool:
    node = _adopted(before, action)
    return node is not None and node.previous not in (0, before.anchor[-1].replid)


def _from_append_only_file(before: State, action: Action, after: State) -> bool:
    node = _adopted(before, action)
    return node is not None and node.previous == 0


RECOVERY = StorageSometimes(
    "a dataset adopted by its generation after a restart from the append-only file",
    _from_append_only_file,
)


BY_NOTE = StorageSometimes(
    "a dataset is adopted by its note",
    lambda before, action, after: (
        action.kind == "observe" and "its note is the registered replid" in action.detail
    ),
)

FLUSHED = StorageSometimes(
    "a dataset is emptied after a grant, and a broker still has its stamp to send",
    lambda before, action, after: (
        action.kind == "flush"
        and after.granted > 0
        and any(version > 1 for version, _ in _reaching(after))
    ),
)


FIRST_STAMP_LATE = StorageSometimes(
    "a dataset is emptied after a grant, and a broker still has a first stamp to send",
    lambda before, action, after: (
        action.kind == "flush"
        and after.granted > 0
        and any(binding.create for binding in after.bindings[1:-1])
    ),
)


def _rolls(before: State, action: Action, after: State) -> bool:
    if action.kind != "keep":
        return False
    binding = before.bindings[action.version]
    return binding.following > binding.first


ROLL = StorageSometimes("an owner rolls to its next ledger and keeps the topic epoch", _rolls)


def _reaching(state: State) -> Iterable[tuple[int, Node]]:
    """Return the versions whose bindings still reach the registered dataset, each with its primary."""
    counts = state.anchor[-1].replid
    for node in state.nodes:
        if node.primary and node.replid == counts:
            for version in range(1, len(state.anchor)):
                if state.bindings[version].replid == counts:
                    yield version, node


def _late_stamp(before: State, action: Action, after: State) -> bool:
    return any(version < view(node.writes).stamped for version, node in _reaching(after))


def _late_fence(before: State, action: Action, after: State) -> bool:
    return any(
        after.bindings[version].following <= after.bindings[version].end
        and after.bindings[version].following < view(node.writes).ledger
        for version, node in _reaching(after)
    )


def _late_append(before: State, action: Action, after: State) -> bool:
    return any(
        after.bindings[version].first < after.bindings[version].following
        and after.bindings[version].end < view(node.writes).ledger
        for version, node in _reaching(after)
    )


def _dead_branch(before: State, action: Action, after: State) -> bool:
    return action.kind == "append"


def _resume_elsewhere(before: State, action: Action, after: State) -> bool:
    epoch = after.bindings[action.version].epoch if action.kind == "keep" else 0
    return any(
        binding.first <= epoch <= binding.end and version.owner != action.broker
        for binding, version in zip(after.bindings[1:], after.anchor[1:], strict=True)
    )


def _resume_from_memory(before: State, action: Action, after: State) -> bool:
    if action.kind != "keep":
        return False
    marker_ledger = view(before.nodes[action.node].writes).ledger
    return marker_ledger < after.bindings[action.version].epoch == after.granted_epoch


def _distrusted(before: State, action: Action, after: State) -> bool:
    newest = len(after.anchor) - 1
    return any(
        version == newest
        and after.bindings[version].epoch == 0
        and view(node.writes).stamped == version
        and 0 < view(node.writes).marker_generation < after.anchor[version].generation
        for version, node in _reaching(after)
    )


def _refuses(model: StorageProtocol) -> Callable[[State, Action, State], bool]:
    def refused(before: State, action: Action, after: State) -> bool:
        newest = len(after.anchor) - 1
        return newest > 0 and not any(
            model.adoptable(after, newest, node) for node in after.nodes if node.primary
        )

    return refused
