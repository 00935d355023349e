"""A run that is encoded at once has the same bytes as its parts encoded one after the other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onewriter_core.wire.encoding import (
    encode_message_header,
    encode_messages,
    encode_send_receipt,
    encode_send_receipts,
)

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
        encode_send_receipt(producer_id, sequence_id, ledger, entry, highest)
        for entry, (sequence_id, highest) in enumerate(numbers, first_entry)
    )
    assert encode_send_receipts(producer_id, ledger, first_entry, numbers) == one_by_one


@given(
    consumer_id=UNSIGNED,
    runs=st.lists(
        st.tuples(
            st.tuples(UNSIGNED, UNSIGNED),
            st.lists(st.binary(max_size=30), max_size=20),
        ),
        max_size=5,
    ),
    epoch=st.none() | UNSIGNED,
    partition=st.sampled_from([-1, 0, 200]),
)
def test_messages_of_runs_are_each_its_header_and_its_bytes(
    consumer_id: int,
    runs: list[tuple[tuple[int, int], list[bytes]]],
    epoch: int | None,
    partition: int,
) -> None:
    one_by_one = b"".join(
        encode_message_header(
            consumer_id, ledger, entry, len(payload), partition=partition, consumer_epoch=epoch
        )
        + payload
        for (ledger, first), payloads in runs
        for entry, payload in enumerate(payloads, first)
    )
    stored = [
        (position, memoryview(b"".join(payloads)), [len(payload) for payload in payloads])
        for position, payloads in runs
    ]
    assert b"".join(encode_messages(consumer_id, stored, epoch, partition)) == one_by_one
