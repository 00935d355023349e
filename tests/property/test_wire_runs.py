"""What is encoded for a whole run at once has the very bytes of one encoding after the other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onewriter_core.wire import hot

UNSIGNED = st.one_of(
    st.sampled_from([0, 127, 128, 2**14 - 1, 2**14, 2**28 - 1, 2**28, 2**53 - 1]),
    st.integers(0, 2**53 - 1),
)


@given(
    producer_id=UNSIGNED,
    ledger=UNSIGNED,
    first_entry=UNSIGNED,
    numbers=st.lists(st.tuples(UNSIGNED, UNSIGNED), max_size=20),
)
def test_receipts_of_a_run_are_the_receipts_of_its_entries(
    producer_id: int, ledger: int, first_entry: int, numbers: list[tuple[int, int]]
) -> None:
    one_by_one = b"".join(
        hot.encode_send_receipt(producer_id, sequence_id, ledger, entry, highest)
        for entry, (sequence_id, highest) in enumerate(numbers, first_entry)
    )
    assert hot.encode_send_receipts(producer_id, ledger, first_entry, numbers) == one_by_one


@given(
    consumer_id=UNSIGNED,
    entries=st.lists(
        st.tuples(
            st.tuples(UNSIGNED, UNSIGNED),
            # A lambda, because mypy does not take the generic class itself.
            st.binary(max_size=30).map(lambda data: memoryview(data)),  # noqa: PLW0108
            st.just(1),
        ),
        max_size=20,
    ),
    epoch=st.none() | UNSIGNED,
)
def test_messages_of_a_run_are_each_its_header_and_its_bytes(
    consumer_id: int,
    entries: list[tuple[tuple[int, int], memoryview, int]],
    epoch: int | None,
) -> None:
    one_by_one = b"".join(
        hot.encode_message_header(consumer_id, ledger, entry, len(payload), consumer_epoch=epoch)
        + bytes(payload)
        for (ledger, entry), payload, _ in entries
    )
    assert b"".join(hot.encode_messages(consumer_id, entries, epoch)) == one_by_one
