"""An identity or a namespace that stages parts leaves room for others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tests.attacks.guarded import GuardedBrokers, http_as, token_of, wire_as
from tests.attacks.http_bytes import connected
from tests.attacks.test_publish_rights import part_of
from tests.integration.conftest import RawClients
from tests.integration.http_calls import OWN
from tests.integration.raw import eventually
from tests.integration.raw_connection import RefusedByBroker

from onewriter_broker.http.onewriter.staging import UPLOADS
from onewriter_testing.in_process import InProcessBroker


@contextlib.contextmanager
def slow_uploads(broker: InProcessBroker, subject: str, count: int) -> Iterator[None]:
    """This number of parts whose bodies never end."""
    with contextlib.ExitStack() as stack:
        for number in range(count):
            connection = stack.enter_context(connected(broker.http_url))
            head = (
                f"PUT {OWN}/greedy/staged/app/1/p/{number} HTTP/1.1\r\nHost: localhost\r\n"
                f"Authorization: Bearer {token_of(subject)}\r\nContent-Length: 1000\r\n\r\nOWR1"
            )
            connection.sendall(head.encode())
        yield


def test_slow_bodies_of_an_identity_leave_places_for_uploads(
    guarded: GuardedBrokers, raw: RawClients
) -> None:
    broker = guarded()
    wire_as(broker, raw, "calm").producer("greedy").close()
    with slow_uploads(broker, "greedy", 4 * UPLOADS.places):
        # Requests of the greedy subject must wait, because its places are used.
        path = f"{OWN}/greedy/staged/app/1/p/again"

        def is_refused() -> bool:
            return http_as(broker, "greedy")("PUT", path, part_of(b"row"))[0] == 429

        eventually(is_refused)
        for number in range(3):
            path = f"{OWN}/calm/staged/app/1/p/{number}"
            status, answer = http_as(broker, "calm")("PUT", path, part_of(b"row"))
            assert status == 200, answer


def test_staged_parts_count_for_their_namespace(guarded: GuardedBrokers, raw: RawClients) -> None:
    setting = "quota_stored_bytes_per_namespace"
    broker = guarded(
        **{setting: 300_000},
        undeclared_store_share=0,
        allow_undeclared="public/default,public/calm",
    )
    refusals: list[str] = []
    greedy = http_as(broker, "greedy")
    numbers = iter(range(10_000))

    def is_full() -> bool:
        path = f"{OWN}/greedy/staged/app/1/p/{next(numbers)}"
        status, answer = greedy("PUT", path, part_of(bytes(50_000)))
        if status != 200:
            assert status == 429, answer
            refusals.append(answer["reason"])
        return status != 200

    eventually(is_full)
    assert setting in refusals[0]
    path = "/onewriter/v1/topics/public/calm/t/staged/app/1/p/a"
    status, answer = http_as(broker, "calm")("PUT", path, part_of(b"row"))
    assert status == 200, answer
    assert greedy("DELETE", f"{OWN}/greedy/staged/app/1")[0] == 200

    def has_space() -> bool:
        try:
            wire_as(broker, raw, "greedy").producer("another").publish(b"x")
        except RefusedByBroker:
            return False
        return True

    eventually(has_space)
