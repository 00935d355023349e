"""The verdicts on entries of a shared state's log."""

from __future__ import annotations

import pytest

from onewriter.state.envelope import CompactFraming, Envelope, MessageFraming, Stamp
from onewriter.state.errors import UnreadableEntry
from onewriter.state.fold import (
    WRITERS_MAX,
    Base,
    Fold,
    GapFound,
    HistoryRewritten,
    Memo,
    Rules,
    Taken,
    Verdict,
)
from onewriter.state.log import LogEntry, LogMessage
from onewriter_core.ids import Position

ONE, TWO = b"writer-1", b"writer-2"

RULES: Rules[int, int] = Rules(
    initial=lambda: 0,
    apply=lambda state, operation: state + operation,
    serialize=lambda operation: b"%d" % operation,
    deserialize=int,
    copy=lambda state: state,
    framing=CompactFraming(),
)


def entry(ledger: int, number: int, stamp: tuple[bytes, int, int], *writes: list[int]) -> LogEntry:
    contents = tuple(tuple(b"%d" % operation for operation in write) for write in writes)
    messages = CompactFraming().pack(Envelope(Stamp(*stamp), contents))
    return LogEntry(Position(ledger, number), messages)


def begun(base: Base[int] | None = None) -> Fold[int, int]:
    return Fold(RULES, base or Base(0))


def take(fold: Fold[int, int], *entries: LogEntry) -> list[Taken[int, int]]:
    return [fold.take(each, lambda _stamp: None) for each in entries]


def test_writes_are_applied_in_order_and_each_is_a_version() -> None:
    fold = begun()
    taken = take(fold, entry(1, 1, (ONE, 0, 0), [1, 2], [4]), entry(1, 2, (ONE, 1, 2), [8]))
    assert [each.verdict for each in taken] == [Verdict.APPLIED] * 2
    assert (fold.state, fold.version, fold.position) == (15, 3, (1, 2))
    assert [(w.before, w.after, w.version) for w in taken[0].writes] == [(0, 3, 1), (3, 7, 2)]


def test_the_same_position_again_changes_nothing() -> None:
    fold = begun()
    take(fold, entry(1, 1, (ONE, 0, 0), [1]))
    again = take(fold, entry(1, 1, (ONE, 0, 0), [1]))
    assert (again[0].verdict, fold.state, fold.version) == (Verdict.KNOWN, 1, 1)


def test_a_resend_that_was_stored_twice_counts_once() -> None:
    fold = begun()
    verdicts = take(
        fold,
        entry(1, 1, (ONE, 0, 0), [1]),
        entry(1, 2, (ONE, 1, 1), [2]),
        entry(1, 3, (ONE, 0, 0), [1]),
        entry(1, 4, (ONE, 2, 2), [4]),
    )
    assert [each.verdict.name for each in verdicts] == ["APPLIED", "APPLIED", "KNOWN", "APPLIED"]
    assert (fold.state, fold.version) == (7, 3)


def test_after_a_refused_entry_the_rest_of_its_pipeline_is_void() -> None:
    fold = begun()
    verdicts = take(
        fold,
        entry(1, 1, (ONE, 0, 0), [1]),
        entry(1, 2, (ONE, 2, 2), [100]),
        entry(1, 3, (ONE, 3, 3), [100]),
        entry(2, 1, (TWO, 0, 1), [2]),
    )
    assert [each.verdict.name for each in verdicts] == ["APPLIED", "VOID", "VOID", "APPLIED"]
    assert (fold.state, fold.version) == (3, 2)


def test_entries_that_were_cut_are_no_refused_ones() -> None:
    fold = begun(Base(10, 5, Position(1, 5), ((ONE, 4),)))
    with pytest.raises(GapFound) as gap:
        take(fold, entry(1, 8, (ONE, 7, 8), [1]))
    assert gap.value.position == (1, 8)
    assert (fold.state, fold.version, fold.position) == (10, 5, (1, 5))


def test_a_log_that_begins_in_its_middle_is_a_gap() -> None:
    with pytest.raises(GapFound):
        take(begun(), entry(4, 1, (ONE, 7, 70), [1]))


def test_a_log_that_lost_what_was_applied_is_folded_again() -> None:
    fold = begun()
    take(fold, entry(1, 1, (ONE, 0, 0), [1]), entry(1, 2, (ONE, 1, 1), [2]))
    with pytest.raises(HistoryRewritten):
        take(fold, entry(2, 1, (TWO, 0, 1), [4]))
    assert fold.state == 3


def test_an_entry_that_lost_a_race_is_void_for_a_reader_of_the_whole_log() -> None:
    fold = begun()
    take(fold, entry(1, 1, (ONE, 0, 0), [1]), entry(1, 2, (ONE, 1, 1), [2]))
    late = entry(2, 1, (TWO, 0, 1), [4])
    taken = fold.take(late, lambda _stamp: None, is_as_stored=True)
    assert (taken.verdict, fold.state, fold.position) == (Verdict.VOID, 3, (2, 1))


def test_an_entry_without_writes_is_a_mere_place() -> None:
    fold = begun()
    take(fold, entry(1, 1, (ONE, 0, 0)), entry(1, 2, (ONE, 1, 0), [1]))
    assert (fold.state, fold.version) == (1, 1)


@pytest.mark.parametrize(
    "messages",
    [
        (LogMessage(b""),),
        (LogMessage(b"OWS1 but no more"),),
        (LogMessage(b"anything else that somebody wrote here"),),
        (LogMessage(b"a"), LogMessage(b"b")),
        (LogMessage(entry(1, 1, (ONE, 0, 0), [1]).messages[0].content + b"!"),),
        (LogMessage(entry(1, 1, (ONE, 0, 0), [1]).messages[0].content[:-1]),),
    ],
)
def test_an_invalid_entry_is_reported_and_changes_nothing(messages: tuple[LogMessage, ...]) -> None:
    fold = begun()
    with pytest.raises(UnreadableEntry) as unreadable:
        take(fold, LogEntry(Position(3, 4), messages))
    assert unreadable.value.position == (3, 4)
    assert (fold.state, fold.version, fold.position) == (0, 0, (-1, -1))


def test_an_entry_whose_second_write_cannot_be_applied_does_nothing_at_all() -> None:
    fold = begun()
    broken = CompactFraming().pack(Envelope(Stamp(ONE, 0, 0), ((b"1",), (b"x",))))
    with pytest.raises(UnreadableEntry):
        take(fold, LogEntry(Position(1, 1), broken))
    assert (fold.state, fold.version) == (0, 0)


def test_a_writers_memo_is_used_only_for_its_own_bytes_and_state() -> None:
    real = entry(1, 1, (ONE, 0, 0), [1])
    other = entry(1, 1, (ONE, 0, 0), [2])
    fold = begun()
    [applied] = take(begun(), real)
    memo = Memo(real.messages, fold.state, applied.writes)
    assert fold.take(real, lambda _stamp: memo).writes is applied.writes
    fold = begun()
    assert fold.take(other, lambda _stamp: memo).writes is not applied.writes
    assert fold.state == 2


def test_a_fold_continues_from_a_base_as_if_it_had_read_everything() -> None:
    entries = [entry(1, n, (ONE, n - 1, n - 1), [n]) for n in range(1, 20)]
    whole = begun()
    take(whole, *entries)
    for cut in range(len(entries)):
        first = begun()
        take(first, *entries[:cut])
        second = begun(first.base())
        take(second, *entries)
        assert second.base() == whole.base()


def test_the_memory_of_writers_is_bounded() -> None:
    fold = begun()
    writers = [b"%08d" % number for number in range(WRITERS_MAX + 10)]
    take(fold, *(entry(n + 1, 1, (w, 0, n), [1]) for n, w in enumerate(writers)))
    assert [writer for writer, _ in fold.base().writers] == writers[10:]


def test_the_stamp_of_a_message_per_operation_is_in_its_properties() -> None:
    framing = MessageFraming()
    envelope = Envelope(Stamp(ONE, 3, 9), ((b"a", b"b"),))
    messages = framing.pack(envelope)
    assert [message.content for message in messages] == [b"a", b"b"]
    assert framing.unpack(messages) == envelope
    assert framing.unpack([LogMessage(b"a")]) == Envelope(None, ((b"a",),))
    assert framing.pack(Envelope(Stamp(ONE, 3, 9), ())) == ()
