"""A JSON value of an unexpected type is refused, and causes no internal error."""

from __future__ import annotations

import pytest
from tests.attacks.guarded import ADMINISTRATOR, GuardedBrokers, http_as, wire_as
from tests.integration.conftest import RawClients
from tests.integration.http_calls import PERSISTENT

from onewriter_core.wire.proto import PulsarApi_pb2 as pb

VALUES: tuple[object, ...] = ([], {}, [[]], {"a": []}, 10**400, True, None)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: str(value)[:20])
def test_a_value_of_another_type_is_refused(
    guarded: GuardedBrokers, raw: RawClients, value: object
) -> None:
    broker = guarded()
    wire_as(broker, raw, "reader").subscribe("orders", "billing", pb.CommandSubscribe.SHARED)
    administrator = http_as(broker, ADMINISTRATOR)
    answers = {
        path: administrator(method, path, body)
        for method, path, body in (
            ("PUT", "/admin/v2/namespaces/public/default/schemaCompatibilityStrategy", value),
            (
                "POST",
                f"{PERSISTENT}/orders/subscription/billing/resetcursor",
                {"ledgerId": 1, "entryId": 1, "excluded": value},
            ),
        )
    }
    assert {path: answer for path, answer in answers.items() if answer[0] >= 500} == {}


def test_a_body_of_many_lists_is_refused_by_its_brackets(guarded: GuardedBrokers) -> None:
    administrator = http_as(guarded(), ADMINISTRATOR)
    body = b"[" + b"[]," * 80_000 + b"[]]"
    for path in ("/admin/v2/namespaces/public/default/retention", "/onewriter/v1/topics"):
        status, answer = administrator("POST", path, body)
        assert status == 400
        assert "objects and lists" in answer["reason"]
