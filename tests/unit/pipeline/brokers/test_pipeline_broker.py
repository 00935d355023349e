"""The client of the brokers: addresses, retries, and interpretation of answers."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.pipeline.brokers.test_frames import STORED, block
from tests.unit.pipeline.scripted_broker import Answer, Request, Script, scripted_broker

from onewriter_broker.http.onewriter import packed
from onewriter_core.audit.logs import StoredState
from onewriter_core.ids import Position
from onewriter_core.log_format import packed_stream
from onewriter_pipeline.brokers import connection as connection_module
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access, AccessLimits
from onewriter_pipeline.brokers.frames import BlockFrame
from onewriter_pipeline.errors import (
    Away,
    Conflict,
    Damaged,
    Invalid,
    LogEnds,
    NotAllowed,
    NotFound,
    PipelineError,
    Trimmed,
)

END = Position(7, 6)
TOKEN = "secret"  # noqa: S105 - of nobody
TOPIC = "/onewriter/v1/topics/public/default"


QUICK = AccessLimits(pause_seconds=0.001, pause_seconds_max=0.01)


def answers(*given: Answer) -> Script:
    """One answer after the other; the last one is repeated."""
    left = list(given)
    return lambda _request: left.pop(0) if len(left) > 1 else left[0]


def refused(status: int, reason: str = "because", **details: str) -> Answer:
    return Answer(status, {"reason": reason} | details)


def page(**fields: Any) -> Answer:
    plain = {
        "topic": "persistent://public/default/orders",
        "epoch": 5,
        "ledger": 7,
        "first": "5:0",
        "last": "7:5",
        "segments": [],
        "complete": True,
        "next": "7:5",
    }
    return Answer(200, plain | fields)


def segment(ledger: int, last: str | None = None, **fields: Any) -> dict[str, Any]:
    names = (
        "epoch",
        "producer",
        "subject",
        "cause",
        "mode",
        "first",
        "oldestMs",
        "newestMs",
        "chain",
    )
    numbers = ("entries", "messages", "bytes", "blocks")
    plain: dict[str, Any] = dict.fromkeys(names) | dict.fromkeys(numbers, 0)
    plain |= {"ledger": ledger, "open": False, "whole": True, "last": last, "stretches": []}
    return plain | fields


@pytest.fixture
def access() -> Any:
    """Creates an Access with a short time limit."""
    return lambda url, **options: Access(
        url, **({"patience_seconds": 0.3, "limits": QUICK} | options)
    )


# ---------------------------------------------------------------- where, and as whom


def test_request_follows_a_redirect_and_later_requests_go_to_the_owner(access: Any) -> None:
    with scripted_broker(answers(page())) as owner:

        def elsewhere(request: Request) -> Answer:
            query = "?after=0%3A0"
            return Answer(307, {}, {"Location": owner.url + request.path + query})

        with scripted_broker(elsewhere) as other, Broker(access(other.url)) as broker:
            for _ in range(3):
                broker.segments("orders")
            assert len(other.requests) == 1
            assert [each.path for each in owner.requests] == [f"{TOPIC}/orders/segments"] * 3


def test_lost_owner_is_looked_up_again(access: Any) -> None:
    with scripted_broker(answers(page())) as first:
        target = [first.url]

        def elsewhere(request: Request) -> Answer:
            return Answer(307, {}, {"Location": target[0] + request.path})

        with scripted_broker(elsewhere) as other:
            broker = Broker(access(other.url))
            broker.segments("orders")
            with scripted_broker(answers(refused(503), page())) as second:
                target[0] = second.url
                broker._connection._owners["persistent://public/default/orders"] = (
                    "http://127.0.0.1:1"
                )
                broker.segments("orders")
                assert len(second.requests) == 2
            broker.close()


def test_one_answering_address_is_enough(access: Any) -> None:
    with scripted_broker(answers(page())) as served:
        with Broker(access(f"http://127.0.0.1:1, {served.url}/")) as broker:
            broker.segments("orders")
            broker.segments("payments")
        assert len(served.requests) == 2


@pytest.mark.parametrize("broken", [503, 502])
def test_broker_that_serves_no_request_is_skipped(access: Any, broken: int) -> None:
    with (
        scripted_broker(answers(refused(broken))) as ill,
        scripted_broker(answers(page())) as served,
        Broker(access(f"{ill.url},{served.url}")) as broker,
    ):
        for topic in ("orders", "payments", "orders"):
            assert broker.segments(topic).end == END
        assert (len(ill.requests), len(served.requests)) == (1, 3)


def test_broker_that_breaks_streams_is_skipped(access: Any) -> None:
    moving = stream(packed.pack_error(503, "the topic is moving"))
    whole = stream(packed.pack(STORED), packed.pack_end(END))
    for begins in (refused(503), moving, stream(packed.pack(STORED[:2]), cut=True)):
        with (
            scripted_broker(answers(begins)) as ill,
            scripted_broker(answers(whole)) as served,
            Broker(access(f"{ill.url},{served.url}")) as broker,
        ):
            assert list(broker.frames("orders", Position(5, 0), END))
            assert (len(ill.requests), len(served.requests)) == (1, 1)


def test_busy_broker_is_not_skipped(access: Any) -> None:
    with (
        scripted_broker(answers(refused(429), page())) as busy,
        scripted_broker(answers(page())) as other,
        Broker(access(f"{busy.url},{other.url}")) as broker,
    ):
        broker.segments("orders")
        assert (len(busy.requests), len(other.requests)) == (2, 0)


def test_token_is_read_from_its_file_for_each_request(access: Any, tmp_path: Path) -> None:
    with scripted_broker(answers(page())) as served:
        with Broker(access(served.url, token=TOKEN)) as broker:
            broker.segments("orders")
        file = tmp_path / "token"
        with Broker(access(served.url, token_file=str(file))) as broker:
            with pytest.raises(Invalid, match="cannot be read"):
                broker.segments("orders")
            for token in ("two", "three\n"):
                file.write_text(token)
                broker.segments("orders")
        reported = [each.headers.get("Authorization") for each in served.requests]
        assert reported == [f"Bearer {TOKEN}", "Bearer two", "Bearer three"]


@pytest.mark.parametrize("token", [f"a\n{TOKEN}", f"{TOKEN}\x00", f"{TOKEN}é"])
def test_invalid_token_is_not_shown(access: Any, tmp_path: Path, token: str) -> None:
    (tmp_path / "token").write_text(token, encoding="utf-8")
    for how in ({"token": token}, {"token_file": str(tmp_path / "token")}):
        with Broker(access("http://127.0.0.1:1", **how)) as broker:
            with pytest.raises(Invalid, match="another invalid character") as raised:
                broker.segments("orders")
            assert TOKEN not in str(raised.value)


def test_line_breaks_around_a_token_are_ignored() -> None:
    assert Access("http://a", token=f" {TOKEN}\n").headers() == {"Authorization": f"Bearer {TOKEN}"}


def test_access_can_be_pickled_and_its_repr_shows_no_token() -> None:
    access = Access("http://here", token=TOKEN)
    assert pickle.loads(pickle.dumps(access)) == access  # noqa: S301 - its own
    assert TOKEN not in repr(access)


@pytest.mark.parametrize("url", ["", " , ", "here:8080", "pulsar://here:6650", "http://"])
def test_invalid_addresses_are_refused(url: str) -> None:
    with pytest.raises(Invalid, match="address"):
        Broker(Access(url))


# ---------------------------------------------------------------- what is asked again


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_unavailable_requests_are_repeated(access: Any, status: int) -> None:
    script = answers(refused(status), Answer(status, "a proxy"), page())
    with scripted_broker(script) as served, Broker(access(served.url)) as broker:
        assert broker.segments("orders").end == END
        assert len(served.requests) == 3


def test_retries_end_with_the_last_reason(access: Any) -> None:
    with scripted_broker(answers(refused(503, "bucket 7 has no owner now"))) as served:
        with (
            Broker(access(served.url)) as broker,
            pytest.raises(Away, match="bucket 7 has no owner"),
        ):
            broker.segments("orders")
        assert len(served.requests) > 2
    anonymous = Broker(access("http://127.0.0.1:1"))
    with pytest.raises(Away, match=r"no broker served this within 0\.3 s"):
        anonymous.segments("orders")


def test_busy_broker_is_retried_for_longer(access: Any) -> None:
    busy = [refused(429)] * 8
    with scripted_broker(answers(*busy, page())) as served:
        with Broker(access(served.url, patience_seconds=0.0)) as broker:
            assert broker.segments("orders").end == END
        assert len(served.requests) == 9
    limits = replace(QUICK, busy_seconds=0.05)
    with (
        scripted_broker(answers(refused(429, "16 are reading"))) as served,
        Broker(access(served.url, patience_seconds=0.0, limits=limits)) as broker,
        pytest.raises(Away, match="16 are reading"),
    ):
        broker.segments("orders")


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (refused(400, "no"), Invalid, "no"),
        (refused(405, "no"), Invalid, "no"),
        (refused(401, "who"), NotAllowed, "who"),
        (refused(403, "who"), NotAllowed, "who"),
        (refused(404, "what"), NotFound, "what"),
        (refused(409, "when"), Conflict, "when"),
        (refused(412, "when"), Conflict, "when"),
        (refused(500, "ouch"), Damaged, "ouch"),
        (Answer(200, "<html>"), Damaged, "not a onewriter broker"),
        (Answer(418, {}), Damaged, "not a onewriter broker"),
        (Answer(200, {"complete": True}), Damaged, "another version"),
        (page(segments=[{}]), Damaged, "another version"),
    ],
)
def test_refusals_are_raised_immediately(
    access: Any, answer: Answer, error: type[PipelineError], message: str
) -> None:
    with scripted_broker(answers(answer)) as served, Broker(access(served.url)) as broker:
        with pytest.raises(error, match=message):
            broker.segments("orders")
        assert len(served.requests) == 1


def test_trimmed_error_has_the_beginning_of_the_log(access: Any) -> None:
    answer = refused(410, "gone", first="6:1", trimmed="6:0")
    with scripted_broker(answers(answer)) as served, Broker(access(served.url)) as broker:
        with pytest.raises(Trimmed, match=r"^gone$") as raised:
            list(broker.read("orders", Position(5, 0)))
        assert (raised.value.first, raised.value.trimmed) == (Position(6, 1), Position(6, 0))
    again = pickle.loads(pickle.dumps(raised.value))  # noqa: S301 - its own
    assert (str(again), again.first) == ("gone", Position(6, 1))


@pytest.mark.parametrize("name", ["a/b", "non-persistent://public/default/x", ""])
def test_invalid_topic_names_are_refused_without_a_request(name: str) -> None:
    with pytest.raises(Invalid):
        Broker(Access("http://127.0.0.1:1")).segments(name)


# ---------------------------------------------------------------- segments


def test_pages_of_segments_are_combined(access: Any) -> None:
    pages = [
        page(segments=[], complete=False, next="0:0"),
        page(segments=[segment(5, "5:4", epoch=5)], complete=False, next="5:4"),
        page(segments=[segment(7, "7:2", open=True)], complete=False, next="7:2"),
        page(segments=[segment(7, "7:5"), segment(8, open=True)], last="8:0", next="8:0"),
    ]
    with scripted_broker(answers(*pages)) as served, Broker(access(served.url)) as broker:
        found = broker.segments("orders")
        assert [each.query["after"] for each in served.requests] == ["0:0", "0:0", "5:4", "7:2"]
    assert [(each.ledger, each.end) for each in found.segments] == [
        (5, Position(5, 5)),
        (7, Position(7, 6)),
        (8, Position(8, 1)),
    ]
    assert [each.is_open for each in found.segments] == [False, False, True]
    assert (found.first, found.end) == (Position(5, 0), Position(8, 1))
    assert found.segments[0].epoch == 5
    assert (found.epoch, found.ledger) == (5, 7)


def test_segments_trimmed_between_two_pages_are_omitted(access: Any) -> None:
    pages = [
        page(segments=[segment(5, "5:4")], complete=False, next="5:4"),
        page(first="7:0", segments=[segment(7, "7:5")]),
    ]
    with scripted_broker(answers(*pages)) as served, Broker(access(served.url)) as broker:
        assert [each.ledger for each in broker.segments("orders").segments] == [7]


# ---------------------------------------------------------------- streams


def test_state_is_requested_at_the_end_of_the_log(access: Any) -> None:
    answer = {"epoch": 5, "ledger": 7, "bucketLedger": 9, "published": {"app": 3}, "trimmed": None}
    script = answers(page(state=answer), page(state=answer | {"trimmed": "7:2"}), page())
    with scripted_broker(script) as served, Broker(access(served.url)) as broker:
        assert broker.state("orders", END) == StoredState(5, 7, 9, {"app": 3})
        assert served.requests[0].query == {"after": "7:6", "state": "true"}
        assert broker.state("orders", END).trimmed == (7, 2)
        with pytest.raises(Damaged, match="another version"):
            broker.state("orders", END)


def stream(*parts: bytes, cut: bool = False) -> Answer:
    return Answer(200, packed_stream.HEAD + b"".join(parts), cut=cut)


def test_range_is_read_to_its_end(access: Any) -> None:
    answer = stream(packed.pack(STORED), packed.pack_end(END))
    with scripted_broker(answers(answer)) as served, Broker(access(served.url)) as broker:
        chunks = list(broker.read("orders-partition-3", Position(5, 2), Position(7, 4)))
        assert served.requests[0].path == f"{TOPIC}/orders-partition-3/blocks"
        assert served.requests[0].query == {"from": "5:2", "to": "7:4"}
    assert [chunk.entry.tolist() for chunk in chunks] == [[2, 3, 4, 1, 2, 3]]


@pytest.mark.parametrize(
    "breaks",
    [
        stream(packed.pack(STORED[:2]), cut=True),
        stream(packed.pack(STORED[:3])[:-3], cut=True),
        stream(packed.pack(STORED[:2])),
        stream(packed.pack(STORED[:2]), packed.pack_error(503, "the topic is moving")),
        stream(packed.pack(STORED[:2]), packed.pack_error(401, "the token has expired")),
    ],
)
def test_broken_stream_is_resumed_after_the_last_whole_block(access: Any, breaks: Answer) -> None:
    rest = stream(packed.pack(STORED[2:]), packed.pack_end(END))
    script = answers(breaks, refused(503), rest)
    with scripted_broker(script) as served, Broker(access(served.url)) as broker:
        frames = list(broker.frames("orders", Position(5, 0), END))
        requests = [each.query["from"] for each in served.requests]
    assert requests == ["5:0", "5:4", "5:4"]
    blocks = [each.first for each in frames if isinstance(each, BlockFrame)]
    assert blocks == [Position(5, 1), Position(5, 4), Position(7, 1), Position(7, 3)]


class Pauses:
    """A clock that advances only during pauses, however busy the machine is."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_stream_with_progress_has_no_time_limit(
    access: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = Pauses()
    monkeypatch.setattr(connection_module, "time", pauses)
    one_each = [
        stream(packed.pack([block(5, 1 + index, 1)]), packed.pack_error(503, "again"))
        for index in range(60)
    ]
    script = answers(*one_each, stream(packed.pack_end(Position(5, 61))))
    with (
        scripted_broker(script) as served,
        Broker(access(served.url, patience_seconds=0.01)) as broker,
    ):
        (chunk,) = broker.read("orders", Position(5, 1), Position(5, 61))
    assert chunk.entry.tolist() == list(range(1, 61))
    assert pauses.now > 0.05, "longer than its patience"


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (stream(packed.pack_error(500, "damaged behind 5:1", at="5:1")), Damaged, "behind 5:1"),
        (stream(packed.pack_error(410, "gone", first="6:1")), Trimmed, "gone"),
        (stream(packed.pack_end(Position(7, 5))), LogEnds, "ends at 7:5, before 7:6"),
        (Answer(200, b"<html>"), Damaged, "not a stream of blocks"),
        (Answer(204, {}), Damaged, "answers HTTP 204"),
        (refused(401, "who"), NotAllowed, "who"),
    ],
)
def test_final_errors_of_a_stream_are_raised(
    access: Any, answer: Answer, error: type[PipelineError], message: str
) -> None:
    with scripted_broker(answers(answer)) as served, Broker(access(served.url)) as broker:
        with pytest.raises(error, match=message):
            list(broker.read("orders", Position(5, 1), END))
        assert len(served.requests) == 1


def test_read_after_the_end_of_the_log_raises_log_ends(access: Any) -> None:
    answer = stream(packed.pack_end(END))
    with scripted_broker(answers(answer)) as served, Broker(access(served.url)) as broker:
        assert list(broker.read("orders", END)) == []
        with pytest.raises(LogEnds) as raised:
            list(broker.read("orders", Position(7, 7)))
        assert raised.value.end == END


def test_client_is_usable_after_a_read_that_stopped_early(access: Any) -> None:
    answer = stream(packed.pack(STORED), packed.pack_end(END))
    with scripted_broker(answers(answer, page())) as served, Broker(access(served.url)) as broker:
        frames = broker.frames("orders")
        next(frames)
        frames.close()
        assert broker.segments("orders").end == END


# ---------------------------------------------------------------- audit, trim, topics


def test_audit_is_read_to_its_end(access: Any) -> None:
    pages = [
        Answer(200, {"buckets": 64}),
        Answer(200, {"records": [{"id": "1-0"}], "next": "1-0", "complete": False}),
        Answer(200, {"records": [{"id": "2-0"}], "next": "2-0", "complete": True}),
    ]
    with scripted_broker(answers(*pages)) as served, Broker(access(served.url)) as broker:
        assert broker.buckets() == 64
        assert [each["id"] for each in broker.audit(17)] == ["1-0", "2-0"]
        assert [each.query.get("after") for each in served.requests[1:]] == [None, "1-0"]


def test_trim_sends_epoch_and_ledger_and_returns_its_limit(access: Any) -> None:
    answer: dict[str, Any] = {"trimmedBefore": "6:2", "first": "6:1"}
    answer["limitedBy"] = {"what": "subscription", "name": "slow"}
    with scripted_broker(answers(Answer(200, answer), refused(409, "the epoch is 8"))) as served:
        with Broker(access(served.url)) as broker:
            done = broker.trim("orders", Position(7, 1), epoch=7, ledger=9)
            assert (done.before, done.first) == (Position(6, 2), Position(6, 1))
            assert (done.limited_by, done.name) == ("subscription", "slow")
            with pytest.raises(Conflict, match="the epoch is 8"):
                broker.trim("orders", Position(7, 1), epoch=7)
        assert served.requests[0].body == {"before": "7:1", "epoch": 7, "ledger": 9}
        assert served.requests[1].body == {"before": "7:1", "epoch": 7}


def test_topics_are_listed_by_page_and_their_logs_by_name(access: Any) -> None:
    pages = [
        Answer(200, {"topics": [{"name": "a"}], "next": "a"}),
        Answer(200, {"topics": [{"name": "b"}], "next": None}),
        Answer(200, {"partitions": 2}),
        Answer(200, {"partitions": 0}),
    ]
    with scripted_broker(answers(*pages)) as served, Broker(access(served.url)) as broker:
        assert list(broker.topic_names()) == ["a", "b"]
        assert broker.logs("orders") == [
            "persistent://public/default/orders-partition-0",
            "persistent://public/default/orders-partition-1",
        ]
        assert broker.logs("payments") == ["persistent://public/default/payments"]
        assert broker.logs("orders-partition-1") == [
            "persistent://public/default/orders-partition-1"
        ]
        assert len(served.requests) == 4
