"""From which broker buckets may be taken, if heartbeats go to every shard, as a model.

Broker O owns a bucket on each of two shards. Broker B observes it. In each round the broker O, if it lives, writes its
heartbeat to every shard that it reaches; B reads every shard that is up. B takes a bucket only if the bucket's shard is up,
because it must observe the shard's primary, and if one of two rules finds O dead (docs/adr/0023):

* over all shards: O was silent for DEAD rounds on every shard that B could read. After rounds in which B could read none,
  O has RETURN rounds instead.
* on the bucket's shard: O was silent there for DEAD rounds. After the shard was away, O has RETURN rounds instead, because
  it may find the new primary later than B.

The naive forms write heartbeats to one shard only, know only one of the rules, or give O no time to return.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

SHARDS = (0, 1)

DEAD = 2
RETURN = 3
"""Rounds of silence, and rounds after an interruption; broker/onewriter_broker/ownership/member_observer.py has seconds."""

LATE_MAX = RETURN - 1
"""Rounds in which a living broker may not have found a new primary yet that the other broker reads."""


@dataclass(frozen=True, slots=True)
class MembershipRules:
    """``shards``: where heartbeats are written and read. ``by_shard``: whether the second rule is used. ``returns``:
    whether this rule gives O time to return.
    """

    shards: tuple[int, ...] = SHARDS
    by_shard: bool = True
    returns: bool = True


class ShardMember(NamedTuple):
    """One shard, and O there.

    ``was_read_away``: B has tried to read the shard since it lost its primary. ``reached``: O has a network to it.
    ``found``: O knows the present primary; ``late``: rounds until it does. ``silent`` and ``has_to_return`` as B counts.
    """

    up: bool = True
    was_read_away: bool = False
    reached: bool = True
    found: bool = True
    late: int = 0
    taken: bool = False
    silent: int = 0
    has_to_return: bool = False

    @property
    def gets_beats(self) -> bool:
        return self.up and self.reached and self.found


class MembershipState(NamedTuple):
    """``silent`` and ``has_to_return``: over all shards, as B counts. ``faults``: changes of O's and the shards' condition.
    ``was_heard`` (ghost): B read a heartbeat of O in the last round.
    """

    lives: bool = True
    shards: tuple[ShardMember, ...] = (ShardMember(), ShardMember())
    silent: int = 0
    has_to_return: bool = False
    faults: int = 0
    was_heard: bool = True

    @property
    def is_dead(self) -> bool:
        return self.silent >= (RETURN if self.has_to_return else DEAD)


class MembershipAction(NamedTuple):
    kind: str
    shard: int = -1

    def __str__(self) -> str:
        match self.kind:
            case "round":
                return "a round of heartbeats and readings"
            case "die":
                return "broker O dies"
            case "take":
                return f"broker B takes the bucket of shard {self.shard}"
            case "cut":
                return f"broker O loses the connection to shard {self.shard}"
            case "find":
                return f"broker O finds the new primary of shard {self.shard}"
            case "down":
                return f"shard {self.shard} loses its primary"
            case _:
                return f"shard {self.shard} has a primary again"


@dataclass(frozen=True, slots=True)
class ShardMembership:
    rules: MembershipRules = MembershipRules()
    faults: int = 3

    def initial(self) -> Iterator[MembershipState]:
        yield MembershipState()

    def successors(
        self, state: MembershipState
    ) -> Iterator[tuple[MembershipAction, MembershipState]]:
        if not self._has_to_find(state):
            yield MembershipAction("round"), self._after_round(state)
        is_at_end = state.faults >= self.faults
        changed = state._replace(faults=state.faults + 1)
        if state.lives and not is_at_end:
            yield MembershipAction("die"), changed._replace(lives=False)
        for number, shard in enumerate(state.shards):
            if shard.up and not shard.taken and (state.is_dead or self._is_dead_on(shard)):
                yield (
                    MembershipAction("take", number),
                    _with(state, number, shard._replace(taken=True)),
                )
            if not shard.up and shard.was_read_away:
                up = shard._replace(up=True, was_read_away=False)
                yield MembershipAction("up", number), _with(state, number, up)
            if state.lives and shard.up and not shard.found:
                found = shard._replace(found=True, late=0)
                yield MembershipAction("find", number), _with(state, number, found)
            if shard.up and not is_at_end:
                down = shard._replace(up=False, found=False, late=0)
                yield MembershipAction("down", number), _with(changed, number, down)
            if shard.reached and not is_at_end:
                cut = shard._replace(reached=False)
                yield MembershipAction("cut", number), _with(changed, number, cut)

    @staticmethod
    def _has_to_find(state: MembershipState) -> bool:
        """A living broker with a network finds a new primary in time."""
        return state.lives and any(
            shard.up and shard.reached and shard.late >= LATE_MAX for shard in state.shards
        )

    def _is_dead_on(self, shard: ShardMember) -> bool:
        limit = RETURN if shard.has_to_return and self.rules.returns else DEAD
        return self.rules.by_shard and shard.silent >= limit

    def _after_round(self, state: MembershipState) -> MembershipState:
        read = [state.shards[number] for number in self.rules.shards if state.shards[number].up]
        is_heard = state.lives and any(shard.gets_beats for shard in read)
        shards = tuple(self._observed(state, shard) for shard in state.shards)
        state = state._replace(shards=shards, was_heard=is_heard)
        if not read:
            return state if state.is_dead else state._replace(silent=0, has_to_return=True)
        if is_heard:
            return state._replace(silent=0, has_to_return=False)
        return state._replace(silent=min(state.silent + 1, RETURN))

    def _observed(self, state: MembershipState, shard: ShardMember) -> ShardMember:
        if not shard.up:
            seen = shard._replace(was_read_away=True)
            is_dead = self._is_dead_on(shard)
            return seen if is_dead else seen._replace(silent=0, has_to_return=True)
        if not shard.found:
            shard = shard._replace(late=min(shard.late + 1, LATE_MAX))
        if state.lives and shard.gets_beats:
            return shard._replace(silent=0, has_to_return=False)
        return shard._replace(silent=min(shard.silent + 1, RETURN))


def _with(state: MembershipState, number: int, shard: ShardMember) -> MembershipState:
    shards = state.shards
    return state._replace(shards=(*shards[:number], shard, *shards[number + 1 :]))
