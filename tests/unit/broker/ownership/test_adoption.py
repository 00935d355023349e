"""Whether a record and a dataset match, and which record is then written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onewriter_broker.anchor.api import PAST_REPLIDS_MAX, Addresses, Record
from onewriter_broker.log.store.api import Observation, Unit
from onewriter_broker.ownership.adoption import (
    LEDGERS_PER_BLOCK,
    Adopt,
    FirstRegistration,
    Reason,
    Refuse,
    SameDataset,
    Verdict,
    acquired,
    forced,
    incomplete_since,
    is_moved,
    is_restored,
    judge,
    needs_note,
    note_of,
    restored,
)
from onewriter_core.ids import NUMBER_MAX
from onewriter_core.log_format.limits import FORMAT_VERSION

OLD, HERE, ELSEWHERE = "a" * 40, "b" * 40, "c" * 40
ADDRESSES = Addresses("pulsar://h:1", "http://h:2")
USED = Record(generation=3, replid=OLD, owner="broker-9~x", ledger_high_water=128, last_ledger=100)


def node(
    replid: str = HERE,
    *,
    previous: str = "",
    generation: int = 0,
    last_ledger: int = 0,
    replicas: int = 0,
    is_primary: bool = True,
    noted: str = "",
) -> Observation:
    unit = Unit(generation=generation, last_ledger=last_ledger, note=noted)
    return Observation(replid, previous, is_primary, replicas, {0: unit})


def verdict(
    record: Record,
    seen: Observation,
    *,
    records_every_grant: bool = True,
    single_node: bool = False,
    sharded: bool = False,
    remembered: int | None = None,
) -> Verdict:
    return judge(
        record,
        0,
        seen,
        records_every_grant=records_every_grant,
        single_node=single_node,
        sharded=sharded,
        remembered=remembered,
    )


def reason(answer: Verdict) -> Reason:
    assert isinstance(answer, Refuse)
    assert answer.text
    return answer.reason


# Same, first, descendant, stranger.


def test_unknown_bucket_is_registered() -> None:
    assert verdict(Record(), node()) == FirstRegistration()


def test_the_registered_dataset_is_the_same() -> None:
    assert verdict(USED, node(OLD, generation=3, last_ledger=100)) == SameDataset()


def test_a_takeover_that_broke_off_before_its_stamp_leaves_the_same_dataset() -> None:
    assert verdict(USED, node(OLD, generation=2, last_ledger=100)) == SameDataset()


@pytest.mark.parametrize(
    "seen",
    [
        node(previous=OLD, generation=3, last_ledger=100),
        node(previous=OLD, generation=2, last_ledger=100),
        node(previous="", generation=3, last_ledger=100),
        node(previous=ELSEWHERE, generation=3, last_ledger=100),
        node(noted=f"{OLD}/3", generation=2, last_ledger=100),
    ],
    ids=[
        *("promoted", "promoted without the newest stamp", "AOF restart", "two promotions"),
        "another identity before its stamp",
    ],
)
def test_a_descendant_is_adopted(seen: Observation) -> None:
    assert verdict(USED, seen) == Adopt(grants_known=True)


@pytest.mark.parametrize(
    ("record", "seen", "expected"),
    [
        (USED, node(is_primary=False), Reason.NOT_PRIMARY),
        (USED, node(ELSEWHERE, generation=2), Reason.FOREIGN_DATASET),
        (USED, node(ELSEWHERE), Reason.EMPTY_DATASET),
        (USED, node(OLD), Reason.EMPTY_DATASET),
        (USED, node(ELSEWHERE, previous=OLD), Reason.EMPTY_DATASET),
        (USED, node(OLD, generation=4), Reason.ANCHOR_BEHIND),
        (Record(), node(generation=1), Reason.UNREGISTERED_DATA),
        (replace(USED, past_replids=(HERE,)), node(HERE, generation=3), Reason.PAST_DATASET),
        (
            replace(USED, past_replids=(HERE,)),
            node(HERE, generation=2, noted=f"{OLD}/3"),
            Reason.PAST_DATASET,
        ),
        (USED, node(HERE, generation=2, noted=f"{HERE}/3"), Reason.FOREIGN_DATASET),
        (USED, node(HERE, generation=2, noted=f"{OLD}/2"), Reason.FOREIGN_DATASET),
        (USED, node(HERE, noted=f"{OLD}/3"), Reason.EMPTY_DATASET),
        (
            replace(USED, ledger_high_water=NUMBER_MAX - 3),
            node(OLD, generation=3),
            Reason.NUMBERS_EXHAUSTED,
        ),
    ],
)
def test_a_dataset_that_does_not_match_the_record_is_refused(
    record: Record, seen: Observation, expected: Reason
) -> None:
    assert reason(verdict(record, seen)) is expected


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (node(OLD, generation=2), True),
        (node(OLD, generation=2, noted=f"{HERE}/2"), True),
        (node(OLD, generation=2, noted=f"{OLD}/2"), True),
        (node(OLD, generation=2, noted=f"{OLD}/3"), False),
        (node(OLD, generation=3), False),
    ],
    ids=[
        "not stamped",
        "an earlier note",
        "an earlier note of the same identity",
        "noted",
        "stamped",
    ],
)
def test_a_dataset_without_the_registration_s_stamp_needs_a_note(
    seen: Observation, expected: bool
) -> None:
    assert needs_note(USED, 0, seen) is expected


def test_a_copy_from_before_a_forced_adoption_of_the_same_identity_is_foreign() -> None:
    """The dataset was emptied and forced under its old identity. Then its process starts with a backup of before."""
    first = acquired(
        Record(), 0, node(OLD), FirstRegistration(), owner="broker-1~x", addresses=ADDRESSES
    )
    again = forced(replace(first, last_ledger=7), 0, node(OLD), owner="operator")
    assert (again.replid, again.generation) == (first.replid, first.generation + 1)
    noted = note_of(first)
    backup = node(HERE, generation=first.generation, last_ledger=7, noted=noted)
    assert verdict(first, backup) == Adopt(grants_known=True)
    assert reason(verdict(again, backup)) is Reason.FOREIGN_DATASET
    unstamped = replace(backup, units={0: replace(backup.units[0], note=note_of(again))})
    assert isinstance(verdict(again, unstamped), Adopt)


def test_a_newer_log_format_is_refused_and_the_versions_are_named() -> None:
    seen = node(OLD, generation=3, last_ledger=100)
    newer = replace(seen.units[0], format=FORMAT_VERSION + 1)
    answer = verdict(USED, replace(seen, units={0: newer}))
    assert reason(answer) is Reason.UNKNOWN_FORMAT
    assert isinstance(answer, Refuse)
    assert f"log format {FORMAT_VERSION + 1}" in answer.text
    assert not answer.is_transient


def test_only_what_may_be_a_race_is_transient() -> None:
    assert {one for one in Reason if Refuse(one, "").is_transient} == {
        Reason.NOT_PRIMARY,
        Reason.ANCHOR_BEHIND,
    }


# A single node.


def test_a_single_node_s_dataset_is_adopted_without_a_proof_of_descent() -> None:
    seen = node(ELSEWHERE, generation=2, last_ledger=100)
    assert verdict(USED, seen, single_node=True) == Adopt(grants_known=True)


def test_a_node_with_replicas_is_no_single_node() -> None:
    seen = node(ELSEWHERE, generation=2, last_ledger=100, replicas=1)
    assert reason(verdict(USED, seen, single_node=True)) is Reason.FOREIGN_DATASET


def test_a_single_node_that_returned_empty_is_refused() -> None:
    assert reason(verdict(USED, node(ELSEWHERE), single_node=True)) is Reason.EMPTY_DATASET


def test_an_empty_dataset_is_accepted_if_nothing_was_granted() -> None:
    unused = replace(USED, last_ledger=0)
    assert verdict(unused, node(OLD)) == SameDataset()
    assert isinstance(verdict(unused, node(ELSEWHERE), single_node=True), Adopt)


@pytest.mark.parametrize("every_grant", [True, False])
@pytest.mark.parametrize(("last_ledger", "remembered"), [(100, None), (0, 100), (100, 100)])
def test_an_empty_dataset_of_a_bucket_in_use_is_refused_on_every_anchor(
    last_ledger: int, remembered: int | None, *, every_grant: bool
) -> None:
    record = replace(USED, last_ledger=last_ledger, clean=False)
    answer = verdict(record, node(OLD), records_every_grant=every_grant, remembered=remembered)
    assert reason(answer) is Reason.EMPTY_DATASET


def test_the_first_use_is_recorded_in_every_anchor_so_earlier_grants_are_not_missing() -> None:
    unused = replace(USED, last_ledger=0, clean=False)
    assert verdict(unused, node(OLD), records_every_grant=False) == SameDataset()


# A cluster: a bucket's hash slot moves to another primary, and back.


def test_a_bucket_that_moved_back_is_adopted_by_its_own_record() -> None:
    record = replace(USED, past_replids=(HERE,))
    back = node(HERE, generation=3, last_ledger=100)
    assert verdict(record, back, sharded=True) == Adopt(grants_known=True)
    assert reason(verdict(record, back)) is Reason.PAST_DATASET, "not without a cluster"
    former = node(HERE, generation=2, last_ledger=100)
    assert reason(verdict(record, former, sharded=True)) is Reason.PAST_DATASET


def test_a_promoted_replica_is_adopted_even_if_its_record_lags() -> None:
    for generation in (1, 2, 3):
        promoted = node(previous=OLD, generation=generation, last_ledger=100)
        assert verdict(USED, promoted, sharded=True) == Adopt(grants_known=True)
    assert reason(verdict(USED, node(previous=OLD), sharded=True)) is Reason.EMPTY_DATASET


def test_only_a_promotion_needs_no_time_for_replicas() -> None:
    assert not is_moved(USED, node(previous=OLD, generation=3))
    assert not is_moved(USED, node(OLD, generation=3))
    assert is_moved(USED, node(previous=ELSEWHERE, generation=3))
    assert not is_moved(Record(), node())


# Are all grants there?


@pytest.mark.parametrize(
    ("last_ledger", "every_grant", "clean", "remembered", "known"),
    [
        (100, True, False, None, True),
        (99, True, False, None, False),
        (100, False, True, None, True),
        (99, False, True, None, False),
        (100, False, False, None, False),
        (120, False, False, 120, True),
        (119, False, False, 120, False),
        (119, True, False, 120, False),
    ],
    ids=[
        "recorded and there",
        "recorded and lost",
        "given back and there",
        "given back and lost",
        "nobody knows the last grant",
        "the owner remembers and it is there",
        "the owner remembers and it is lost",
        "the owner remembers one that could not be recorded and it is lost",
    ],
)
def test_grants_are_known_when_the_last_recorded_one_is_in_the_dataset(
    last_ledger: int, every_grant: bool, clean: bool, remembered: int | None, known: bool
) -> None:
    seen = node(previous=OLD, generation=3, last_ledger=last_ledger)
    answer = verdict(
        replace(USED, clean=clean), seen, records_every_grant=every_grant, remembered=remembered
    )
    assert answer == Adopt(grants_known=known)


# What is written.


def claim(
    record: Record, seen: Observation, answer: SameDataset | FirstRegistration | Adopt
) -> Record:
    return acquired(record, 0, seen, answer, owner="broker-0~me", addresses=ADDRESSES)


def test_taking_the_same_dataset_changes_the_owner_and_reserves_a_block() -> None:
    clean = replace(USED, clean=True)
    assert claim(clean, node(OLD, generation=3), SameDataset()) == replace(
        USED,
        owner="broker-0~me",
        addresses=ADDRESSES,
        ledger_high_water=128 + LEDGERS_PER_BLOCK,
        clean=False,
    )


def test_adopting_starts_a_registration_and_remembers_the_old_dataset() -> None:
    record = claim(USED, node(), Adopt(grants_known=True))
    assert (record.generation, record.replid, record.past_replids) == (4, HERE, (OLD,))
    assert record.known_since == 0


def test_adopting_without_knowing_the_grants_is_remembered_for_every_later_owner() -> None:
    lost = claim(USED, node(), Adopt(grants_known=False))
    assert lost.known_since == lost.generation == 4
    later = claim(lost, node(ELSEWHERE), Adopt(grants_known=True))
    assert (later.generation, later.known_since) == (5, 4)


def test_past_datasets_are_bounded_and_the_newest_are_kept() -> None:
    record = USED
    for number in range(3 * PAST_REPLIDS_MAX):
        record = claim(record, node(f"{number:040x}"), Adopt(grants_known=True))
    assert len(record.past_replids) == PAST_REPLIDS_MAX
    assert record.past_replids[-1] == f"{3 * PAST_REPLIDS_MAX - 2:040x}"
    assert record.replid not in record.past_replids


def test_a_rewound_anchor_reserves_above_what_the_store_has_seen() -> None:
    seen = node(OLD, generation=3, last_ledger=500)
    assert claim(USED, seen, SameDataset()).ledger_high_water == 500 + LEDGERS_PER_BLOCK


@pytest.mark.parametrize("answer", [SameDataset(), Adopt(grants_known=True)])
def test_the_record_has_the_grants_that_the_former_owner_did_not_record_in_time(
    answer: SameDataset | Adopt,
) -> None:
    later = node(OLD, generation=3, last_ledger=120)
    assert claim(USED, later, answer).last_ledger == 120
    assert claim(USED, node(OLD, generation=3, last_ledger=90), answer).last_ledger == 100


def test_force_registers_above_every_ledger_and_ends_the_right_to_resume() -> None:
    record = forced(USED, 0, node(ELSEWHERE, generation=9, last_ledger=500), owner="operator")
    assert record == Record(
        generation=10,
        replid=ELSEWHERE,
        past_replids=(OLD,),
        owner="operator",
        ledger_high_water=500,
        last_ledger=500,
        clean=True,
        known_since=10,
    )


def test_force_makes_an_old_dataset_count_again() -> None:
    record = forced(replace(USED, past_replids=(HERE,)), 0, node(generation=1), owner="operator")
    assert (record.replid, record.past_replids) == (HERE, (OLD,))


def test_forced_dataset_is_accepted_by_all_brokers_afterwards() -> None:
    for seen in (node(), node(generation=2, last_ledger=50)):
        record = forced(USED, 0, seen, owner="operator")
        for every_grant in (True, False):
            assert verdict(record, seen, records_every_grant=every_grant) == SameDataset()


def test_a_copy_that_an_administrator_restored_is_older_than_everything_that_was_granted() -> None:
    record = restored(replace(USED, owner="broker", clean=False))
    assert (record.owner, record.generation, record.replid) == ("", USED.generation, USED.replid)
    assert record.last_ledger > USED.ledger_high_water, "no dataset has this ledger"
    copy = node(ELSEWHERE, generation=USED.generation, last_ledger=USED.last_ledger)
    for every_grant in (True, False):
        found = verdict(record, copy, records_every_grant=every_grant, sharded=True)
        assert found == Adopt(grants_known=False, is_older=True)
    taken = claim(record, copy, Adopt(grants_known=False, is_older=True))
    assert taken.known_since == taken.generation
    assert not is_restored(taken), "the first owner notes the restore, and later ones read the note"
    assert min_ledger(taken) > record.last_ledger


def min_ledger(record: Record) -> int:
    """The first ledger of the block that was reserved last."""
    return record.ledger_high_water - LEDGERS_PER_BLOCK + 1


def test_a_bucket_that_its_owner_released_is_not_taken_for_a_restored_one() -> None:
    released = replace(USED, clean=True, owner="")
    lagging = node(ELSEWHERE, generation=USED.generation, last_ledger=USED.last_ledger - 1)
    assert verdict(released, lagging, sharded=True) == Adopt(grants_known=False)


@pytest.mark.parametrize(
    ("generation", "known_since", "single_node", "expected"),
    [
        (1, 0, True, 0),
        (1, 0, False, 0),
        (3, 0, True, 0),
        (3, 3, True, 3),
        (5, 3, True, 3),
        (5, 3, False, 5),
    ],
    ids=["first", "first of several", "restarts", "forced", "restarts since", "copies"],
)
def test_since_which_registration_entries_may_be_missing(
    generation: int, known_since: int, single_node: bool, expected: int
) -> None:
    record = replace(USED, generation=generation, known_since=known_since)
    assert incomplete_since(record, single_node=single_node) == expected
