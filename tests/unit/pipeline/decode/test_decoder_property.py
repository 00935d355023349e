"""For any messages of producers, the decoder returns what the plain protobuf library reads one by one."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.pipeline.entries import Entry, Sent, chunk_of, read_one_by_one, rows_of

from onewriter_pipeline.decode import Decoder
from onewriter_pipeline.schema import EXTRA_COLUMNS, MESSAGE_COLUMNS

TOPIC = "persistent://public/default/orders-partition-3"
COLUMNS = (*MESSAGE_COLUMNS, *EXTRA_COLUMNS)
NUMBERS = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1))
TIMES = st.one_of(st.integers(1, 300), st.integers(1, 2**50))
TEXTS = st.text(max_size=12)

messages = st.builds(
    Sent,
    value=st.one_of(st.none(), st.binary(max_size=5), st.binary(max_size=400)),
    key=st.one_of(st.none(), TEXTS.map(str.encode)),
    key_as_base64=st.booleans(),
    properties=st.lists(st.tuples(TEXTS, TEXTS), max_size=4).map(tuple),
    event_time=st.one_of(st.none(), TIMES),
    sequence=st.one_of(st.none(), NUMBERS),
    ordering_key=st.one_of(st.none(), st.binary(max_size=6)),
)
others = st.fixed_dictionaries(
    {},
    optional={
        "replicated_from": TEXTS,
        "replicate_to": st.lists(TEXTS, max_size=3),
        "schema_version": st.binary(max_size=9),
        "deliver_at_time": st.integers(-(2**40), 2**40),
        "highest_sequence_id": NUMBERS,
        "null_partition_key": st.booleans(),
        "partition_key": TEXTS,
        "compacted_batch_indexes": st.lists(st.integers(0, 9), max_size=3),
    },
)
singles = st.builds(
    Entry,
    messages=messages.map(lambda message: (message,)),
    codec=st.integers(0, 4),
    producer=TEXTS,
    sequence=NUMBERS,
    published=TIMES,
    checksum=st.booleans(),
    more=others,
)
batches = st.builds(
    Entry,
    messages=st.one_of(
        st.lists(messages | st.just(Sent(compacted_out=True)), min_size=1, max_size=9),
        st.tuples(messages, st.integers(1, 60)).map(lambda drawn: [drawn[0]] * drawn[1]),
    ),
    batched=st.just(True),
    codec=st.integers(0, 4),
    producer=TEXTS,
    sequence=NUMBERS,
    published=TIMES,
    more=others,
)


def decoded(chunk: Any) -> list[dict[str, Any]]:
    return rows_of(Decoder(TOPIC, COLUMNS).decode(chunk))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(singles | batches, max_size=12))
def test_rows_of_any_entries_equal_the_reference(entries: list[Entry]) -> None:
    chunk = chunk_of([entry.encoded() for entry in entries])
    expected = [row | {"__epoch": None} for row in read_one_by_one(chunk, TOPIC)]
    assert decoded(chunk) == expected
