"""The model of the storage protocol: it holds, and the search finds each weaker protocol wrong.

``SMALLEST`` contains the smallest scopes in which every weaker protocol below is found wrong and in which every
``sometimes`` property occurs. The real protocol is explored in each of them. The marker ``full`` adds larger
scopes, and ``ONEWRITER_MODEL=large`` those that take minutes and gigabytes (`make model`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.model.explorer import Report, explore
from tests.model.storage_properties import (
    BY_NOTE,
    EARLIER_OWNERSHIP,
    FIRST_STAMP_LATE,
    FLUSHED,
    RECOVERY,
    ROLL,
    StorageSometimes,
    always,
    registration,
    sometimes,
    steps,
)
from tests.model.storage_protocol import StorageProtocol
from tests.model.storage_state import (
    ID_FENCE_ONLY,
    LINEAGE_BY_REPLID_ONLY,
    PROTOCOL,
    UNREGISTERED,
    Action,
    Rules,
    Scope,
    State,
)

pytestmark = pytest.mark.timeout(600)  # tens of seconds of computation, more on a busy machine

LARGE = os.environ.get("ONEWRITER_MODEL") == "large"
STATES_MAX = 20_000_000 if LARGE else 2_000_000

THREE_DATASETS = Scope(versions=2, block=1, reads_apart=False)
"""Two acquisitions and two failovers: every ``sometimes`` property occurs."""

OPEN_LEDGER = Scope(versions=2, datasets=2, begun=True)
"""Two acquisitions and one failover, from an open ledger, with two ledgers reserved at a time."""

FIRST_STAMPS = Scope(datasets=1, block=1, reads_apart=False, flushes=1)
"""From an empty store, with one emptying."""

UNUSED_LEDGERS = Scope(datasets=2, reads_apart=False, begun=True, losses=False)
"""Three acquisitions, with ledgers left over from the first one."""

THREE_OWNERS = Scope(block=1, reads_apart=False, begun=True, losses=False)
"""Three acquisitions and two failovers that lose nothing."""

NOTES = replace(THREE_OWNERS, notes=1)
"""As above, with a note of a replid."""

SMALLEST = {
    "three datasets": THREE_DATASETS,
    "an open ledger": OPEN_LEDGER,
    "first stamps": FIRST_STAMPS,
    "unused ledgers": UNUSED_LEDGERS,
    "three owners": THREE_OWNERS,
    "notes": NOTES,
}

StorageReport = Report[State, Action]


def examine(
    rules: Rules,
    scope: Scope,
    *,
    invariants: Sequence[str] = (),
    seen: Sequence[StorageSometimes] = (),
) -> StorageReport:
    """Explore, and check all invariants or only those with one of the given numbers."""
    all_steps = steps(rules) + (registration(rules) if rules.registered else [])
    return explore(
        StorageProtocol(rules, scope),
        always=[p for p in always(rules) if not invariants or p.name[0] in invariants],
        steps=[p for p in all_steps if not invariants or p.name[0] in invariants],
        sometimes=seen,
        states_max=STATES_MAX,
    )


def trace(report: StorageReport) -> list[Action]:
    assert report.violation is not None, f"nothing was found: {report}"
    return list(report.violation.actions)


def kinds(report: StorageReport) -> list[str]:
    return [action.kind for action in trace(report)]


# ---- The protocol holds ---------------------------------------------------------------------------


SEEN = {
    "three datasets": sometimes(StorageProtocol(PROTOCOL, THREE_DATASETS)),
    "an open ledger": [ROLL],
    "first stamps": [FIRST_STAMP_LATE],
    "notes": [BY_NOTE],
}


@pytest.mark.parametrize("name", SMALLEST)
def test_the_protocol_holds_in_the_smallest_scopes(name: str) -> None:
    examine(PROTOCOL, SMALLEST[name], seen=SEEN.get(name, [])).assert_sound()


@pytest.mark.full  # the scopes above, in more directions
@pytest.mark.parametrize(
    "scope",
    [
        pytest.param(Scope(block=1, reads_apart=False), id="two failovers and three owners"),
        pytest.param(Scope(versions=2, block=2, reads_apart=False), id="owners that roll"),
        pytest.param(Scope(datasets=2, block=1, needless=True), id="every step apart"),
        pytest.param(Scope(versions=2, datasets=4, block=1, begun=True), id="three failovers"),
        pytest.param(Scope(datasets=2, block=1, nodes=3, begun=True), id="three nodes"),
        pytest.param(replace(THREE_OWNERS, notes=2), id="two notes"),
        pytest.param(replace(OPEN_LEDGER, notes=1), id="a note and a torn file"),
    ],
)
def test_the_protocol_holds_in_other_scopes(scope: Scope) -> None:
    examine(PROTOCOL, scope).assert_sound()


@pytest.mark.skipif(not LARGE, reason="minutes and gigabytes; ONEWRITER_MODEL=large runs it")
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "scope",
    [
        pytest.param(Scope(reads_apart=False, begun=True), id="rolls and two failovers"),
        pytest.param(Scope(block=1, needless=True), id="every step apart"),
        pytest.param(
            Scope(nodes=3, block=1, reads_apart=False, begun=True), id="three nodes, two failovers"
        ),
        pytest.param(Scope(brokers=3, block=1, reads_apart=False, begun=True), id="three brokers"),
        pytest.param(
            Scope(versions=4, datasets=2, block=1, reads_apart=False, begun=True), id="four owners"
        ),
    ],
)
def test_the_protocol_holds_in_larger_scopes(scope: Scope) -> None:
    examine(PROTOCOL, scope).assert_sound()


def test_no_broker_returns_to_an_emptied_bucket_without_an_operator() -> None:
    scope = Scope(datasets=2, block=1, reads_apart=False, begun=True, losses=False, flushes=1)
    report = examine(PROTOCOL, scope, seen=[FLUSHED])
    report.assert_sound()


# ---- Weaker protocols are found wrong -------------------------------------------------------------


def test_the_id_fence_alone_forgets_with_the_dataset() -> None:
    """Level 1: the marker was lost with the tail, so the old writer's ID is high enough again."""
    found = examine(ID_FENCE_ONLY, THREE_DATASETS, invariants="1")
    losses = {"promote", "restart"}
    assert losses & set(kinds(found)), "the ID fence holds inside one dataset"
    assert kinds(found)[-1] == "append"


def test_a_dataset_check_needs_a_registered_dataset() -> None:
    """Level 2: one broker follows the failover, the other completes its takeover on the old node."""
    found = examine(UNREGISTERED, THREE_DATASETS, invariants="1")
    assert "promote" in kinds(found)
    assert kinds(found)[-1] == "append"
    assert found.violation is not None
    ours, other = found.violation.states[-1].bindings[1:]
    assert ours.replid != other.replid, "each was served by another dataset"


def test_lineage_by_replid_alone_is_safe_but_stuck() -> None:
    """Level 3: a restart from the append-only file clears replid2, and no dataset can be adopted any more."""
    report = examine(LINEAGE_BY_REPLID_ONLY, THREE_DATASETS, seen=[RECOVERY])
    assert report.violation is None
    assert not report.cut
    assert report.unreached == (RECOVERY.name,)


def test_a_generation_written_before_the_compare_and_set_makes_a_stale_branch_adoptable() -> None:
    """A broker with an old view raises a stale branch to exactly the generation that won elsewhere.

    This needs no lost write.
    """
    found = examine(Rules(stamp_after=False), THREE_OWNERS, invariants="4")
    assert kinds(found)[-1] == "acquire"
    assert kinds(found).count("announce") >= 2


@pytest.mark.full  # the test above finds the adoption itself
def test_a_stale_branch_that_is_adopted_so_holds_an_old_owner_s_append() -> None:
    scope = replace(THREE_OWNERS, reads_apart=True)
    found = examine(Rules(stamp_after=False), scope, invariants="1")
    assert kinds(found)[-1] == "acquire"
    assert "append" in kinds(found)


def test_a_late_note_of_another_dataset_s_replid_makes_a_stale_branch_adoptable() -> None:
    found = examine(Rules(note_checked=False), NOTES, invariants="1")
    assert kinds(found)[-1] == "acquire"
    assert {"append", "identify"} <= set(kinds(found))


def test_adopting_whatever_is_there_brings_a_stale_branch_back() -> None:
    found = examine(Rules(by_anything=True), THREE_OWNERS, invariants="1")
    assert {"append", "promote"} <= set(kinds(found))


def test_without_the_dataset_check_an_old_owner_writes_into_the_new_dataset() -> None:
    found = examine(Rules(replid_guard=False), THREE_DATASETS, invariants="1")
    assert kinds(found)[-1] == "append"


def test_ledgers_kept_from_an_earlier_ownership_are_too_low() -> None:
    found = examine(Rules(fresh_block=False), UNUSED_LEDGERS, invariants="17")
    assert kinds(found).count("acquire") >= 2
    assert "restart" in kinds(found) or "promote" in kinds(found)


def test_without_token_and_version_a_deposed_owner_moves_cursors() -> None:
    """A hash has no ID fence: only these two checks protect the writes outside the log."""
    rules = Rules(token_check=False, owner_check="owner")
    found = examine(rules, THREE_DATASETS, invariants="6")
    assert kinds(found)[-1] == "cursor"


def test_without_the_owner_check_a_late_grant_slips_between_reading_and_fencing() -> None:
    """The new owner resumes the epoch that it read; meanwhile the old one granted a newer one."""
    found = examine(Rules(owner_check="nothing"), OPEN_LEDGER, invariants="7")
    recovered = kinds(found).index("recover")
    assert "grant" in kinds(found)[recovered:]
    assert kinds(found)[-1] == "keep"


def test_accepting_a_late_stamp_returns_the_bucket_to_the_former_owner() -> None:
    found = examine(Rules(late_stamp_refused=False), OPEN_LEDGER, invariants="7")
    stamps = [action.version for action in trace(found) if action.kind == "stamp"]
    assert stamps != sorted(stamps)


def test_a_late_stamp_on_an_emptied_bucket_brings_a_deposed_owner_back() -> None:
    """B won the anchor and froze; A won it back and granted; FLUSHALL; B's stamp arrives."""
    found = examine(Rules(empty_stamp_refused=False), FIRST_STAMPS, invariants="17")
    flushed = kinds(found).index("flush")
    assert "stamp" in kinds(found)[flushed:]
    assert kinds(found)[-1] in {"append", "grant", "keep"}


def test_a_first_stamp_without_a_birthmark_brings_a_deposed_owner_back() -> None:
    """B won the anchor first and froze; A won it and granted; FLUSHALL; B's stamp arrives.

    Both correctly found the bucket without a record.
    """
    found = examine(Rules(birthmarked=False), FIRST_STAMPS, invariants="17")
    flushed = kinds(found).index("flush")
    assert "stamp" in kinds(found)[:flushed]
    assert "stamp" in kinds(found)[flushed:]
    assert kinds(found)[-1] in {"append", "grant", "keep"}


def test_an_epoch_found_in_a_cut_log_is_not_the_last_one() -> None:
    found = examine(Rules(careful_resume=False), OPEN_LEDGER, invariants="7")
    assert kinds(found)[-1] == "keep"
    assert {"restart", "promote"} & set(kinds(found))


def test_comparing_only_the_owner_lets_through_its_own_write_from_before_it_lost_the_bucket() -> (
    None
):
    """A acquired, B acquired, A acquired again: A's delayed catalog write from its first ownership still passes.

    This concerns only writes that nothing but the bucket's record guards. Comparing the version of the stamp as
    well prevents it.
    """
    scope = Scope(datasets=1, block=1)
    by_owner = StorageProtocol(Rules(owner_check="owner"), scope)
    assert kinds(explore(by_owner, steps=[EARLIER_OWNERSHIP]))[-1] == "catalog"
    by_version = StorageProtocol(Rules(owner_check="version"), scope)
    explore(by_version, steps=[EARLIER_OWNERSHIP]).assert_sound()


def test_the_protocol_holds_without_its_secondary_checks_in_this_scope() -> None:
    """Within this scope the protocol holds without them. They protect against what is not modelled."""
    rules = Rules(past_refused=False, generation_check=False)
    examine(rules, THREE_OWNERS).assert_sound()


# ---- The trace of the model --------------------------------------------------------------------------


def test_every_kind_of_action_has_its_line() -> None:
    protocol = StorageProtocol(Rules(stamp_after=False, token_check=False), Scope(versions=2))
    unregistered = StorageProtocol(UNREGISTERED, Scope(versions=2, datasets=2))
    lines: dict[str, str] = {}
    for model in (protocol, unregistered):
        level = list(model.initial())
        for _ in range(9):
            following: dict[State, None] = {}
            for state in level:
                for action, after in model.successors(state):
                    lines[action.kind] = str(action)
                    following[after] = None
            level = list(following)[:400]
    assert set(lines) >= {"read", "observe", "announce", "acquire", "stamp", "grant", "restart"}
    assert all("broker" in line or "node" in line for line in lines.values())
