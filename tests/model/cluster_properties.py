"""Properties of the cluster protocol: what must hold, and what a model must reach so that this means anything."""

from __future__ import annotations

from collections.abc import Callable

from tests.model.cluster_protocol import (
    NOTHING,
    UNKNOWN,
    Action,
    ClusterProtocol,
    Node,
    State,
    is_reported,
    view,
)
from tests.model.explorer import Always, Sometimes, Step

ClusterAlways = Always[State]
ClusterStep = Step[State, Action]
ClusterSometimes = Sometimes[State, Action]


def counting(state: State) -> list[Node]:
    """Return the nodes that accept writes to the registered dataset."""
    replid = state.anchor[-1].replid
    return [node for node in state.nodes if node.role == "primary" and node.replid == replid]


def missing(state: State, node: Node) -> int:
    """Return the acknowledged entries that the node's dataset lacks, as bits."""
    return state.acknowledged & ~view(node.writes).entries


def unreported(state: State, node: Node) -> bool:
    """Whether the dataset lacks an acknowledged entry and does not say so."""
    lost, seen = missing(state, node), view(node.writes)
    return any(
        lost >> entry & 1 and not is_reported(seen.report, ledger, entry)
        for entry, ledger in enumerate(state.ledgers)
    )


def always(model: ClusterProtocol) -> list[ClusterAlways]:
    """Return the invariants of single states."""

    def fenced(state: State) -> bool:
        return not any(view(node.writes).stale for node in counting(state))

    def never_silent(state: State) -> bool:
        newest = len(state.anchor) - 1
        binding = state.bindings[newest]
        if model.rules.reports_first and binding.unreported != NOTHING:
            return True
        return not binding.opened or not any(
            view(node.writes).stamped == newest and unreported(state, node)
            for node in counting(state)
        )

    def kept(state: State) -> bool:
        primary = state.primary()
        return primary is None or not missing(state, primary)

    properties = [
        Always("fenced: nothing stale is in the dataset that counts", fenced),
        Always("never silent: a broker that serves has reported every loss", never_silent),
    ]
    if model.scope.is_loss_free and not model.scope.moves:
        properties.append(Always("kept: the primary has everything acknowledged", kept))
    return properties


def steps(model: ClusterProtocol) -> list[ClusterStep]:
    """Return the invariants of single transitions."""

    def harmless(before: State, action: Action, after: State) -> bool:
        stale = action.kind == "append" and action.version < before.granted
        return not stale or after.nodes[action.node] not in counting(after)

    def own_generation(before: State, action: Action, after: State) -> bool:
        changed = after.anchor[-1].replid != before.anchor[-1].replid
        return after.anchor[-1].generation == before.anchor[-1].generation + changed

    def survives(before: State, action: Action, after: State) -> bool:
        if action.kind not in {"promote", "restart", "volume"} or not settled(before):
            return True
        primary = after.primary()
        return primary is None or bool(model.proof(after, primary))

    def recognised(before: State, action: Action, after: State) -> bool:
        primary, following = before.primary(), after.primary()
        if action.kind not in {"copy", "restart"} or primary is None or following is None:
            return True
        return model.proof(before, primary) in {"", "replid2"} or bool(
            model.proof(after, following)
        )

    properties = [
        Step("fenced: no append of an older ledger enters the dataset that counts", harmless),
        Step("generation: every registration of a dataset has its own", own_generation),
        Step("recognised: a dataset that changes its replid is adopted as before", recognised),
    ]
    if model.scope.replicas_return and model.scope.known == 1:
        properties.append(
            Step("survives: after one failure of a bucket that is served it is adopted", survives)
        )
    return properties


def settled(state: State) -> bool:
    """Whether a broker serves the bucket on the primary that the cluster names."""
    primary = state.primary()
    return (
        primary is not None
        and primary.replid == state.anchor[-1].replid
        and view(primary.writes).stamped == len(state.anchor) - 1
    )


def acquired(why: str) -> Callable[[State, Action, State], bool]:
    """Whether a bucket was acquired with this proof."""
    return lambda before, action, after: action.kind == "acquire" and action.detail == why


def promoted(*, same_owner: bool) -> Callable[[State, Action, State], bool]:
    """Whether a promoted replica was adopted, by the bucket's owner or by another broker."""

    def reached(before: State, action: Action, after: State) -> bool:
        former, newest = before.anchor[-1], after.anchor[-1]
        return (
            action.kind == "acquire"
            and after.nodes[action.node].previous == former.replid != newest.replid
            and (former.owner == newest.owner) is same_owner
        )

    return reached


def lost(before: State, action: Action, after: State) -> bool:
    """Whether a promotion lost something acknowledged."""
    primary = after.primary()
    return (
        action.kind == "promote"
        and primary is not None
        and not any(missing(before, node) for node in before.nodes if node.role == "primary")
        and missing(after, primary) != 0
    )


def _paused(before: State, action: Action, after: State) -> bool:
    """Whether a served bucket has no replica that could confirm anything."""
    primary = after.primary()
    return (
        settled(after)
        and primary is not None
        and not any(
            node.role == "replica" and node.replid == primary.replid for node in after.nodes
        )
    )


def _relies(before: State, action: Action, after: State) -> bool:
    """Whether a broker opens a log of an adopted dataset by the note alone."""
    if action.kind != "open" or before.bindings[action.version].known != UNKNOWN:
        return False
    generation, seen = (
        before.anchor[action.version].generation,
        view(before.nodes[action.node].writes),
    )
    return (
        seen.settled < generation == seen.noted
        and not after.bindings[action.version].unreported.ranges
    )


OWNER_CONTINUES = ClusterSometimes(
    "the owner adopts the promoted replica", promoted(same_owner=True)
)
TAKEOVER = ClusterSometimes(
    "another broker adopts the promoted replica", promoted(same_owner=False)
)
BY_GENERATION = ClusterSometimes(
    "a dataset is adopted by its generation", acquired("the generation")
)
BY_NOTE = ClusterSometimes(
    "a dataset that changed its replid before its stamp is adopted by its note",
    acquired("the note"),
)
RETURNED = ClusterSometimes(
    "a dataset that was registered before returns with its proof",
    acquired("registered before, with the generation"),
)
ZOMBIE = ClusterSometimes(
    "a deposed primary accepts an append of a deposed owner",
    lambda before, action, after: action.kind == "append" and bool(action.detail),
)
LOSES = ClusterSometimes("a promotion loses something acknowledged", lost)
PAUSED = ClusterSometimes("no replica can confirm anything", _paused)
REPORTED = ClusterSometimes(
    "a broker reports a range at risk",
    lambda before, action, after: action.kind == "report" and "Range" in action.detail,
)
SETTLED = ClusterSometimes(
    "a broker states no range at risk, because its predecessor noted that the log is settled",
    _relies,
)
EMPTIED = ClusterSometimes(
    "the primary's volume is lost after something was acknowledged",
    lambda before, action, after: action.kind == "volume" and before.acknowledged != 0,
)
