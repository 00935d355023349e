"""Unexpected answers, such as those of a broker of another version, cause an error of one sentence in every
request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.pipeline.scripted_broker import Answer, scripted_broker

from onewriter_core.ids import Position
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.errors import Damaged
from onewriter_pipeline.lead.requests import Grant
from onewriter_pipeline.publish import transfer
from onewriter_pipeline.publish.parts import PackedPart
from onewriter_pipeline.publish.staging import Staging
from onewriter_pipeline.publish.transfer import AT_LEAST_ONCE, EXACTLY_ONCE, PublishTarget

AT = Position(5, 1)
QUESTIONS: dict[str, Callable[[Broker], object]] = {
    "topics": lambda broker: list(broker.topic_names()),
    "logs": lambda broker: broker.logs("orders"),
    "segments": lambda broker: broker.segments("orders"),
    "state": lambda broker: broker.state("orders", AT),
    "position_at": lambda broker: broker.position_at("orders", 1),
    "buckets": lambda broker: broker.buckets(),
    "audit": lambda broker: list(broker.audit(3)),
    "acknowledge": lambda broker: broker.acknowledge("orders", "spark", AT),
    "trim": lambda broker: broker.trim("orders", AT, epoch=5),
}
KEYS = ("topics", "partitions", "segments", "state", "ledgerId", "buckets", "records", "before")


def nonsense(value: object) -> dict[str, object]:
    """An answer with all fields that the client reads, all of them invalid."""
    return dict.fromkeys(KEYS, value) | {"limitedBy": value, "next": None, "complete": True}


def asked(answer: dict[str, object], question: Callable[[Access], object]) -> None:
    with scripted_broker(lambda _: Answer(body=answer)) as served:
        with pytest.raises(
            Damaged, match=r"unexpected answer of a broker, perhaps of another version"
        ) as raised:
            question(Access(served.url, patience_seconds=0.2))
        assert "\n" not in str(raised.value)


ANSWERS: list[dict[str, object]] = [
    {},
    nonsense(None),
    nonsense("word"),
    nonsense([{}]),
    nonsense([3]),
]


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("question", QUESTIONS)
def test_incomplete_answers_to_reads_are_damaged(question: str, answer: dict[str, object]) -> None:
    def put(access: Access) -> object:
        with Broker(access) as broker:
            return QUESTIONS[question](broker)

    asked(answer, put)


@pytest.mark.parametrize("answer", [{}, {"key": "k", "rows": "many"}, {"outcome": None}])
def test_incomplete_answers_to_staging_and_publishing_are_damaged(answer: dict[str, Any]) -> None:
    part = PackedPart(1, b"rows", 1, 1)
    asked(answer, lambda access: Staging(access, "orders", "app", 1).put("label", part))
    asked(answer, lambda access: Staging(access, "orders", "app", 1, Grant(5)).publish([]))


@pytest.mark.parametrize("answer", [{}, {"partitions": None}, {"partitions": "many"}])
@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_incomplete_answers_about_partitions_are_damaged(
    guarantee: str, answer: dict[str, object]
) -> None:
    def first_log(access: Access) -> str:
        return transfer._first_log(PublishTarget(access, "orders", guarantee=guarantee), "app", 1)

    asked(answer, first_log)
