"""The model of heartbeats on every shard: which buckets a living owner keeps, and which takeovers a shard stops."""

from __future__ import annotations

from tests.model.explorer import Report, Sometimes, Step, explore
from tests.model.shard_membership import (
    MembershipAction,
    MembershipRules,
    MembershipState,
    ShardMembership,
)

MembershipReport = Report[MembershipState, MembershipAction]


def keeps_what_it_serves(
    before: MembershipState, action: MembershipAction, after: MembershipState
) -> bool:
    """A bucket is taken only if its owner is dead, cut off from the bucket's shard, or heard on no shard."""
    if action.kind != "take" or not before.lives:
        return True
    return not (before.shards[action.shard].reached and before.was_heard)


STEPS = [Step("a living owner that reaches its shard keeps its bucket", keeps_what_it_serves)]

ELSEWHERE = Sometimes[MembershipState, MembershipAction](
    "a bucket is taken from a dead owner while another shard is away",
    lambda before, action, after: (
        action.kind == "take" and not before.lives and not before.shards[1 - action.shard].up
    ),
)

TOGETHER = Sometimes[MembershipState, MembershipAction](
    "an owner that died together with the primary of its shard is replaced without a wait for its return",
    lambda before, action, after: (
        action.kind == "take"
        and before.shards[action.shard].has_to_return
        and before.shards[action.shard].silent == 0
        and not before.has_to_return
    ),
)

RETURNS = Sometimes[MembershipState, MembershipAction](
    "an owner returns after no shard could be read",
    lambda before, action, after: before.has_to_return and not after.has_to_return,
)

CUT_OFF = Sometimes[MembershipState, MembershipAction](
    "a living owner loses the bucket of the shard that it does not reach, and keeps the other one",
    lambda before, action, after: (
        action.kind == "take"
        and before.was_heard
        and before.shards[1 - action.shard].reached
        and before.shards[1 - action.shard].up
    ),
)


def examine(rules: MembershipRules) -> MembershipReport:
    model = ShardMembership(rules)
    return explore(model, steps=STEPS, sometimes=[ELSEWHERE, TOGETHER, RETURNS, CUT_OFF])


def test_no_living_owner_loses_a_bucket_that_it_serves_and_no_shard_stops_the_others() -> None:
    examine(MembershipRules()).assert_sound()


def test_heartbeats_on_one_shard_take_buckets_from_a_living_owner() -> None:
    served = Sometimes[MembershipState, MembershipAction](
        "after one fault a bucket is taken from an owner that serves it",
        lambda before, action, after: (
            action.kind == "take" and before.lives and before.shards[action.shard].gets_beats
        ),
    )
    assert explore(ShardMembership(faults=1), sometimes=[served]).unreached == (served.name,)
    naive = ShardMembership(MembershipRules(shards=(0,), by_shard=False), faults=1)
    assert explore(naive, sometimes=[served]).unreached == ()


def test_heartbeats_on_one_shard_stop_the_takeovers_of_the_other() -> None:
    model = ShardMembership(MembershipRules(shards=(0,), by_shard=False))
    unheard = Sometimes[MembershipState, MembershipAction](
        "the owner is found dead while the shard with the heartbeats is away",
        lambda before, action, after: after.silent > before.silent and not before.shards[0].up,
    )
    assert explore(model, sometimes=[unheard]).unreached == (unheard.name,)
    assert explore(ShardMembership(), sometimes=[unheard]).unreached == ()


def test_the_newest_heartbeat_of_all_shards_alone_leaves_buckets_that_no_broker_can_serve() -> None:
    found = examine(MembershipRules(by_shard=False))
    assert found.violation is None
    assert found.unreached == (CUT_OFF.name,)


def test_a_shard_that_returns_takes_buckets_from_an_owner_that_finds_it_later() -> None:
    found = examine(MembershipRules(returns=False))
    assert found.violation is not None
    last = found.violation.states[-1]
    assert last.lives
    assert all(shard.reached for shard in last.shards)


def test_every_action_has_its_line() -> None:
    model = ShardMembership()
    level, lines = list(model.initial()), dict[str, str]()
    for _ in range(5):
        following: dict[MembershipState, None] = {}
        for state in level:
            for action, after in model.successors(state):
                lines[action.kind] = str(action)
                following[after] = None
        level = list(following)
    assert set(lines) == {"round", "die", "take", "cut", "find", "down", "up"}
