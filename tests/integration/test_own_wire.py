"""The decision table of ownership over the wire, cell by cell (docs/wire.md, "Ownerships")."""

from __future__ import annotations

import itertools
import urllib.parse
import urllib.request

import pytest
from tests.integration.conftest import ATTENTIVE, RawClients
from tests.integration.forked_brokers import forked_brokers
from tests.integration.http_calls import Http
from tests.integration.owners import DeniedByBroker, disown, lost, own, own_all
from tests.integration.raw import RawClient, RefusedByBroker, eventually

from onewriter_core.errors import ServerError
from onewriter_core.own.names import RESOURCE_BYTES_MAX
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.processes import LocalBrokers

_numbers = itertools.count()


@pytest.fixture
def resource() -> str:
    """A resource without an owner."""
    return f"any text at all, number {next(_numbers)}"


def denied(client: RawClient, resource: str, generation: int, **options: str) -> DeniedByBroker:
    with pytest.raises(DeniedByBroker) as found:
        own(client, resource, generation, **options)  # type: ignore[arg-type]  # names and texts
    return found.value


def test_no_owner_generation_1_whatever_was_asked(
    broker: LocalBrokers, raw: RawClients, resource: str
) -> None:
    client = raw(broker.address())
    assert own(client, resource, 1) == 1
    assert own(client, resource + " asked with 7", 7) == 1


def test_no_owner_any_more_the_kept_floor_and_one(
    broker: LocalBrokers, raw: RawClients, resource: str
) -> None:
    first = raw(broker.address())
    assert own(first, resource, identity="one") == 1
    first.close()
    other = raw(broker.address())
    eventually(lambda: own(other, resource + " marker", identity="two") >= 1)
    eventually(lambda: _owns(other, resource, "two"))
    assert own(other, resource, 2, identity="two", nonce="") == 3, "its own next life"


def _owns(client: RawClient, resource: str, identity: str) -> bool:
    try:
        return own(client, resource, identity=identity) == 2
    except DeniedByBroker:
        return False


def test_a_released_one_is_nobodys_and_its_owner_does_not_return(
    broker: LocalBrokers, raw: RawClients, resource: str
) -> None:
    client = raw(broker.address())
    assert own(client, resource, nonce="n") == 1
    disown(client, resource, 1)
    disown(client, resource, 1)
    with pytest.raises(DeniedByBroker) as found:
        own(client, resource, 1, nonce="n", only_returns=True)
    assert found.value.code is ServerError.PRODUCER_FENCED
    assert own(client, resource, 1, nonce="n") == 2


def test_a_lower_generation_is_denied_with_the_current_one(
    broker: LocalBrokers, raw: RawClients, resource: str
) -> None:
    owner = raw(broker.address())
    own(owner, resource)
    assert own(owner, resource, 5, identity="") == 5
    error = denied(raw(broker.address()), resource, 4)
    assert (error.code, error.current) == (ServerError.PRODUCER_FENCED, 5)


def test_an_equal_generation_of_another_identity_is_denied(
    broker: LocalBrokers, raw: RawClients, resource: str
) -> None:
    own(raw(broker.address()), resource, identity="one")
    for identity in ("two", ""):
        error = denied(raw(broker.address()), resource, 1, identity=identity)
        assert (error.code, error.current) == (ServerError.PRODUCER_BUSY, 1)


def test_an_equal_generation_of_an_anonymous_client_is_denied(
    broker: LocalBrokers, raw: RawClients, resource: str
) -> None:
    own(raw(broker.address()), resource)
    assert denied(raw(broker.address()), resource, 1).code is ServerError.PRODUCER_BUSY


def test_an_equal_generation_of_the_same_identity_severs_the_former_owner(
    broker: LocalBrokers, raw: RawClients, resource: str
) -> None:
    former = raw(broker.address())
    own(former, resource, identity="task-3", nonce="first life")
    assert own(raw(broker.address()), resource, 1, identity="task-3", nonce="second") == 2
    reported = lost(former)
    assert (reported.group, reported.resource.name, reported.resource.generation) == (
        "group",
        resource,
        1,
    )
    assert reported.current_generation == 2
    assert not reported.is_moving
    error = denied(former, resource, 1, identity="task-3", nonce="first life")
    assert (error.code, error.current) == (ServerError.PRODUCER_FENCED, 2)


def test_a_higher_generation_severs_the_owner(
    broker: LocalBrokers, raw: RawClients, resource: str
) -> None:
    former = raw(broker.address())
    own(former, resource, identity="one")
    assert own(raw(broker.address()), resource, 9, identity="two") == 9
    assert lost(former).current_generation == 9


def test_generation_0_succeeds_for_an_administrator_with_any_owner(
    broker: LocalBrokers, raw: RawClients, resource: str
) -> None:
    """Without tokens every client is an administrator, as over HTTP; test_own_rights.py tests it with tokens."""
    former, client = raw(broker.address()), raw(broker.address())
    own(former, resource, identity="one")
    own(former, resource, 40, identity="one")
    assert own(client, resource, 0, identity="two") == 41, "it never goes back"
    assert [lost(former).current_generation for _ in range(2)] == [40, 41]


def test_the_same_nonce_continues_if_no_other_owner_came_between(
    broker: LocalBrokers, raw: RawClients, resource: str
) -> None:
    first = raw(broker.address())
    assert own(first, resource, identity="one", nonce="mine") == 1
    assert own(first, resource, identity="one", nonce="mine") == 1, "a lost answer"
    first.close()
    back = raw(broker.address())
    assert own(back, resource, identity="one", nonce="mine", only_returns=True) == 1
    assert not back.has_received(pb.CommandOwnershipLost)


def test_an_owner_that_reconnected_elsewhere_deposes_its_old_connection(
    broker: LocalBrokers, raw: RawClients, resource: str
) -> None:
    former = raw(broker.address())
    own(former, resource, nonce="mine")
    assert own(raw(broker.address()), resource, 1, nonce="mine", only_returns=True) == 1
    assert lost(former).current_generation == 1


def test_a_client_that_may_only_return_never_begins_a_generation(
    broker: LocalBrokers, raw: RawClients, resource: str
) -> None:
    client = raw(broker.address())
    with pytest.raises(DeniedByBroker) as found:
        own(client, resource, 1, nonce="mine", only_returns=True)
    assert (found.value.code, found.value.current) == (ServerError.PRODUCER_FENCED, 0)


def test_a_group_is_optional_and_keeps_apart(
    broker: LocalBrokers, raw: RawClients, resource: str
) -> None:
    one, two = raw(broker.address()), raw(broker.address())
    assert own(one, resource, group=None) == 1
    assert own(two, resource, group="other") == 1
    assert own(two, resource, 2, group=None) == 2
    reported = lost(one)
    assert not reported.HasField("group")


def test_many_resources_are_answered_in_order_each_for_itself(
    broker: LocalBrokers, raw: RawClients, resource: str
) -> None:
    client = raw(broker.address())
    taken = resource + " taken"
    own(raw(broker.address()), taken, identity="somebody")
    request = [(f"{resource}/{n}", 1) for n in range(50)]
    request[7], request[8], request[9] = (taken, 1), (resource, -1), ("", 1)
    request[10] = ("persistent://no topic", 1)
    request[20] = request[21]
    results = own_all(client, request, nonce="mine")
    assert [result.name for result in results] == [name for name, _ in request]
    codes = {n: ServerError(r.error) for n, r in enumerate(results) if r.HasField("error")}
    assert codes == {
        7: ServerError.PRODUCER_BUSY,
        8: ServerError.NOT_ALLOWED_ERROR,
        9: ServerError.NOT_ALLOWED_ERROR,
        10: ServerError.INVALID_TOPIC_NAME,
    }
    assert all(r.generation == 1 for n, r in enumerate(results) if n not in codes)


@pytest.mark.parametrize("name", ["with\nline", "x" * (RESOURCE_BYTES_MAX + 1), ""])
def test_a_name_that_cannot_be_kept_is_refused(
    broker: LocalBrokers, raw: RawClients, name: str
) -> None:
    client = raw(broker.address())
    assert denied(client, name, 1).code is ServerError.NOT_ALLOWED_ERROR


@pytest.mark.parametrize("generation", [-1, -(2**63), 2**52, 2**63 - 1])
def test_a_generation_beyond_its_bounds_is_refused(
    broker: LocalBrokers, raw: RawClients, resource: str, generation: int
) -> None:
    assert denied(raw(broker.address()), resource, generation).code is ServerError.NOT_ALLOWED_ERROR


def test_a_request_of_none_or_of_too_many_is_refused_as_a_whole(
    broker: LocalBrokers, raw: RawClients, resource: str
) -> None:
    client = raw(broker.address())
    with pytest.raises(RefusedByBroker) as found:
        own_all(client, [])
    assert found.value.code is ServerError.NOT_ALLOWED_ERROR
    with pytest.raises(RefusedByBroker) as found:
        own_all(client, [(f"{resource} {n}", 1) for n in range(10_000)])
    assert found.value.code is ServerError.TOO_MANY_REQUESTS
    assert own_all(client, [(f"{resource} {n}", 1) for n in range(1_000)])[999].generation == 1


@pytest.mark.parametrize("what", ["group", "identity", "nonce"])
def test_other_texts_have_bounds_too(
    broker: LocalBrokers, raw: RawClients, resource: str, what: str
) -> None:
    with pytest.raises(RefusedByBroker) as found:
        own(raw(broker.address()), resource, **{what: "x" * 300})  # type: ignore[arg-type]
    assert found.value.code is ServerError.NOT_ALLOWED_ERROR


def test_an_owner_that_is_silent_has_none_after_a_while(raw: RawClients, resource: str) -> None:
    with forked_brokers(settings=ATTENTIVE) as brokers:
        silent = raw(brokers.address())
        own(silent, resource, identity="silent")
        silent.freeze()
        client = raw(brokers.address())
        eventually(lambda: _owns(client, resource, "next"))
        silent.thaw()


def test_the_text_output_lists_owners_and_resources(
    broker: LocalBrokers, raw: RawClients, resource: str
) -> None:
    http = Http(broker.http_url)
    client = raw(broker.address())
    own(client, resource, group="people", identity="task-3", nonce="a secret")
    own(client, resource + " too", group="people")
    status, page = http("GET", "/onewriter/v1/ownerships?group=people&limit=1")
    assert status == 200
    (row,) = page["ownerships"]
    assert (row["resource"], row["group"], row["generation"]) == (resource, "people", 1)
    assert (row["owned"], row["connected"]) == (True, True)
    assert row["owner"]["identity"] == "task-3"
    assert "a secret" not in str(page)
    after = urllib.parse.quote(page["next"])
    _, rest = http("GET", f"/onewriter/v1/ownerships?group=people&after={after}")
    assert [row["resource"] for row in rest["ownerships"]] == [resource + " too"]
    assert rest["next"] is None
    with urllib.request.urlopen(broker.http_url + "/metrics") as answer:  # noqa: S310 - http
        text = answer.read().decode()
    assert 'onewriter_ownerships_granted_total{cause="vacant"}' in text
    assert "onewriter_ownerships " in text
