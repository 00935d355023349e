"""Every command and every path requires a right. A stranger tries all of them, including those that are added
later.
"""

from __future__ import annotations

import inspect
import re
from typing import Any, get_args

import pytest
from tests.attacks.guarded import GuardedBrokers, http_as, wire_as
from tests.integration.conftest import RawClients
from tests.integration.http_calls import Http

from onewriter_broker.connection import lookups, rights
from onewriter_broker.connection import ownerships as owning
from onewriter_broker.http.routes import AnyIdentity, Filtered, Needs, Open
from onewriter_core.authorization import Action
from onewriter_core.errors import ProtocolError
from onewriter_core.ids import Identity, TopicName
from onewriter_core.wire.commands import Command, class_of
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.in_process import InProcessBroker

TOPIC = "persistent://shop/default/orders"
MANIFESTS = """
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: orders, namespace: shop}
spec: {}
"""

PARTS = {
    "domain": "persistent",
    "tenant": "shop",
    "namespace": "default",
    "topic": "orders",
    "cluster": "standalone",
    "bucket": "0",
    "bundle": "0x00000000_0xffffffff",
    "role": "subscription/x",
}
"""Values of path variables; ``1`` for variables that are not listed."""


@pytest.fixture
def broker(guarded: GuardedBrokers) -> InProcessBroker:
    return guarded(manifests=MANIFESTS, consumers_default="namespace", require_declared=True)


def routes_of(broker: InProcessBroker) -> list[tuple[str, str, Any]]:
    """Method, path and rule of every route."""
    found = []
    for route, rule in broker._broker.http.routes:
        assert route.resource is not None
        path = re.sub(r"\{(\w+)\}", lambda m: PARTS.get(m[1], "1"), route.resource.canonical)
        method = "PATCH" if route.method == "*" else route.method
        found.append((method, path, rule))
    return found


def test_every_route_declares_what_it_needs(broker: InProcessBroker) -> None:
    routes = routes_of(broker)
    assert len(routes) > 200
    opened = {path for _, path, rule in routes if isinstance(rule, Open)}
    assert opened == {"/healthz", "/readyz"}
    for _, _, rule in routes:
        assert isinstance(rule, Needs) or rule.why


def test_no_route_answers_without_a_token(broker: InProcessBroker) -> None:
    call = Http(broker.http_url)
    answers = {
        (method, path): call(method, path)[0]
        for method, path, rule in routes_of(broker)
        if not isinstance(rule, Open)
    }
    assert {key: status for key, status in answers.items() if status != 401} == {}


def test_no_route_that_needs_a_right_answers_an_unauthorized_client(
    broker: InProcessBroker,
) -> None:
    call = http_as(broker, "system:serviceaccount:rival:web")
    answers = {
        (method, path): call(method, path)[0]
        for method, path, rule in routes_of(broker)
        if isinstance(rule, Needs)
    }
    assert {key: status for key, status in answers.items() if status != 403} == {}


def test_open_routes_name_no_topic(broker: InProcessBroker) -> None:
    call = http_as(broker, "system:serviceaccount:rival:web")
    for method, path, rule in routes_of(broker):
        if method == "GET" and isinstance(rule, AnyIdentity | Filtered):
            _, body = call(method, path)
            assert "orders" not in str(body), path


def test_every_command_has_a_rule() -> None:
    numbers = set(pb.BaseCommand.Type.values())
    assert set(rights.RULES) == numbers
    assert {class_of(number) for number in numbers} == set(get_args(Command))
    handled = "\n".join(inspect.getsource(module) for module in (lookups, owning))
    for rule in rights.RULES.values():
        if isinstance(rule, rights.NoneNeeded):
            assert rule.why
        if isinstance(rule, rights.OnEach):
            assert f"def {rule.where.rpartition('.')[2]}(" in handled


def test_commands_of_brokers_are_refused_from_clients() -> None:
    guard = rights.CommandRights(cast_any(None), Identity("mallory"), lambda _id: None)
    for number, rule in rights.RULES.items():
        if isinstance(rule, rights.FromBrokers):
            kind: Any = class_of(number)
            with pytest.raises(ProtocolError):
                guard.refusal(kind.__new__(kind))


def test_no_command_about_a_topic_answers_an_unauthorized_client(
    broker: InProcessBroker, raw: RawClients
) -> None:
    authorization = broker._broker.clients.authorization
    unauthorized = Identity("system:serviceaccount:rival:web")
    guard = rights.CommandRights(authorization, unauthorized, lambda _id: TopicName.parse(TOPIC))
    request = 0
    for number, rule in rights.RULES.items():
        if isinstance(rule, rights.OnTopic | rights.OnConsumersTopic):
            command: Any = class_of(number)()
            command.request_id = 1
            if isinstance(rule, rights.OnTopic):
                command.topic = TOPIC
            else:
                command.consumer_id = 1
            assert guard.refusal(command) is not None, rule
            request += 1
    assert request >= 10
    assert authorization.refusals[Action.CONSUME.value] >= 2
    wire_as(broker, raw, unauthorized.subject)  # it is let in, and to nothing


def cast_any(value: object) -> Any:
    return value
