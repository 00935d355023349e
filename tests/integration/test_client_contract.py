"""What every client API does: the SDK, its blocking variant, and the sidecar.

Their own tests contain what only one of them has.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.integration.client_apis import APIS, Application, Rejected
from tests.integration.raw import FENCING, RawClient, contents_of

from onewriter.testing import InProcessBroker, in_process_broker

INCREMENTS = 20

_numbers = itertools.count()


@pytest.fixture(scope="module")
def local() -> Iterator[InProcessBroker]:
    with in_process_broker() as started:
        yield started


@pytest.fixture
def name() -> str:
    """A resource or a map that was not used before."""
    return f"contract-{next(_numbers)}"


@pytest.fixture(params=APIS)
def start(
    request: pytest.FixtureRequest, local: InProcessBroker, topic: str, tmp_path: Path
) -> Iterator[Callable[[], Application]]:
    """Starts applications of one topic that use the same API."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(APIS[request.param](local.service_url, topic, tmp_path))


def address(local: InProcessBroker) -> tuple[str, int]:
    url = urlsplit(local.service_url)
    assert url.hostname is not None
    assert url.port is not None
    return url.hostname, url.port


def test_a_leader_publishes_and_the_next_one_leads_when_it_releases(
    local: InProcessBroker, start: Callable[[], Application], topic: str
) -> None:
    former = start()
    epoch = former.lead()
    assert former.publish(b"first") == epoch
    successor = start()
    led: list[int] = []
    waiting = threading.Thread(target=lambda: led.append(successor.lead()))
    waiting.start()
    former.publish(b"last")
    assert led == []
    former.release()
    waiting.join()
    assert led[0] > epoch
    successor.publish(b"next")
    with pytest.raises(Rejected):
        former.publish(b"late")
    assert contents_of(address(local), topic) == [b"first", b"last", b"next"]


@pytest.mark.parametrize("beside", ["", "{%s}-audit"], ids=["topic", "guarded"])
def test_a_deposed_leader_is_notified_and_writes_nowhere(
    local: InProcessBroker, start: Callable[[], Application], topic: str, beside: str
) -> None:
    target = beside and beside % topic
    leader = start()
    epoch = leader.lead()
    assert leader.publish(b"before", target=target) == epoch
    with RawClient(address(local)) as taker:
        taker.lookup(topic)
        taken = taker.producer(topic, FENCING)
        leader.lost()
        with pytest.raises(Rejected) as rejected:
            leader.publish(b"late", target=target)
        assert rejected.value.current == taken.epoch
        assert contents_of(address(local), target or topic) == [b"before"]


def test_a_higher_generation_takes_a_resource_and_its_owner_is_notified(
    start: Callable[[], Application], name: str
) -> None:
    owner, other = start(), start()
    assert owner.own(name) == 1
    assert owner.own(f"{name} kept") == 1
    assert other.own(name, 2) == 2
    assert owner.not_owned(name) == 2
    owner.disown(f"{name} kept")
    assert other.own(f"{name} kept", 2) == 2


def test_an_earlier_generation_is_denied(start: Callable[[], Application], name: str) -> None:
    owner, other = start(), start()
    assert owner.own(name) == 1
    assert other.own(name, 5) == 5
    with pytest.raises(Rejected):
        owner.own(name, 3)


def test_applications_share_a_map(start: Callable[[], Application], name: str) -> None:
    one, two = start(), start()
    assert one.get(name, "n") is None
    one.put(name, "n", 1)
    assert two.get(name, "n") == 1
    assert not two.replace(name, "n", None, 2)
    assert not two.replace(name, "n", 7, 2)
    assert two.replace(name, "n", 1, 2)
    assert one.get(name, "n") == 2
    one.delete(name, "n")
    assert two.get(name, "n") is None
    assert two.replace(name, "n", None, 3)


def test_no_increment_of_two_applications_is_lost(
    start: Callable[[], Application], name: str
) -> None:
    pair = start(), start()
    pair[0].put(name, "n", 0)
    failures: list[BaseException] = []

    def count(application: Application) -> None:
        try:
            for _ in range(INCREMENTS):
                while True:
                    found = application.get(name, "n")
                    assert found is not None
                    if application.replace(name, "n", found, found + 1):
                        break
        except BaseException as error:  # noqa: BLE001 - the test reports it
            failures.append(error)

    threads = [threading.Thread(target=count, args=(each,)) for each in pair]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert pair[1].get(name, "n") == 2 * INCREMENTS
