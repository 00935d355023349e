"""The model of a bucket's append calls: order and acknowledgements hold, and two naive forms are found wrong."""

from __future__ import annotations

import pytest
from tests.model.cluster_calls import CallAction, CallRules, CallScope, CallState, ClusterCalls
from tests.model.explorer import Always, Report, Sometimes, explore


def is_prefix(state: CallState) -> bool:
    return state.log == tuple(range(len(state.log)))


def is_kept(state: CallState) -> bool:
    return state.acknowledged <= set(state.log)


def is_refused_only_if_absent(state: CallState) -> bool:
    return not state.refused & set(state.log)


ALWAYS = [
    Always("order: the log is a prefix of what was sent", is_prefix),
    Always("kept: what WAIT confirmed survives the promotion of the replica", is_kept),
    Always("refused means absent", is_refused_only_if_absent),
]

SOMETIMES = [
    Sometimes[CallState, CallAction](
        "a call is executed after the broker has given its connection up",
        lambda before, action, after: (
            action.kind == "execute"
            and action.number < len(before.connections) - 1
            and before.log != after.log
        ),
    ),
    Sometimes[CallState, CallAction](
        "a call is refused while a hash slot moves, and sent again",
        lambda before, action, after: action.kind == "send" and before.refusals > 0,
    ),
    Sometimes[CallState, CallAction](
        "a stored block is found when it is sent again over another connection",
        lambda before, action, after: action.kind == "execute" and action.block in before.log,
    ),
]


SCOPE = CallScope()


def examine(rules: CallRules, scope: CallScope = SCOPE) -> Report[CallState, CallAction]:
    return explore(ClusterCalls(rules, scope), always=ALWAYS, sometimes=SOMETIMES)


def broken(report: Report[CallState, CallAction]) -> str:
    assert report.violation is not None, f"nothing found: {report}"
    return report.violation.broken.split(":")[0]


def test_order_and_acknowledgements_hold() -> None:
    examine(CallRules()).assert_sound()


@pytest.mark.full
def test_order_and_acknowledgements_hold_with_more_connections_and_refusals() -> None:
    examine(CallRules(), CallScope(connections=3, refusals=2)).assert_sound()


def test_two_undecided_calls_of_a_bucket_store_a_block_without_the_one_before_it() -> None:
    assert broken(examine(CallRules(undecided_max=2))) == "order"


def test_a_wait_on_another_connection_confirms_what_the_replica_does_not_have() -> None:
    assert broken(examine(CallRules(wait_on_writer=False))) == "kept"


def test_every_action_has_its_line() -> None:
    model = ClusterCalls()
    level, lines = list(model.initial()), dict[str, str]()
    for _ in range(6):
        following: dict[CallState, None] = {}
        for state in level:
            for action, after in model.successors(state):
                lines[action.kind] = str(action)
                following[after] = None
        level = list(following)
    assert set(lines) == {"send", "execute", "refuse", "drop", "wait", "promote"}
