"""Quotas on topics count the catalogs of all brokers, also after a restart."""

from __future__ import annotations

import pytest
from tests.unit.broker.topic.registry.test_catalog import World

from onewriter_broker.log.store.api import Binding
from onewriter_broker.quotas.book import Quota, QuotaBook, QuotaExceeded
from onewriter_broker.topic.registry.catalog import CatalogEntry, Catalogs
from onewriter_broker.topic.registry.creation import ELSEWHERE_SECONDS, Creations
from onewriter_core.errors import Undecided
from onewriter_core.ids import TopicName, bucket_of
from onewriter_core.topic.model import WHOLE
from onewriter_testing.fake_store.store import FakeLogStore

BUCKETS = 4
GREEDY, CALM = "subject greedy", "subject calm"


class Installation:
    """A store with the buckets of two brokers."""

    def __init__(self) -> None:
        self.world = World()
        self.now = 100.0
        self.bindings: dict[int, Binding] = {}

    async def begin(self) -> None:
        self.bindings = {bucket: await self.world.binding(bucket) for bucket in range(BUCKETS)}

    def broker(self, *held: int, **limits: int) -> Maker:
        """A broker that was just started."""
        return Maker(self, held, {Quota(quota): limit for quota, limit in limits.items()})


class Maker:
    def __init__(
        self, installation: Installation, held: tuple[int, ...], limits: dict[Quota, int]
    ) -> None:
        self.quotas = QuotaBook(limits)
        self._installation = installation
        self._bindings = {bucket: installation.bindings[bucket] for bucket in held}
        store = FakeLogStore(installation.world.server.resolve)
        self.catalogs = Catalogs(store, BUCKETS)
        self.asked = 0
        """How often it was asked whether the broker holds a bucket."""
        self.creations = Creations(
            self.quotas, self.catalogs, self._binding, lambda: installation.now
        )
        self._names = (
            name
            for number in range(100_000)
            if bucket_of(name := TopicName.parse(f"t-{number}"), BUCKETS) in held
        )

    def _binding(self, bucket: int) -> Binding | None:
        self.asked += 1
        return self._bindings.get(bucket)

    def hold(self, *buckets: int) -> None:
        """Acquire further buckets."""
        self._bindings |= {bucket: self._installation.bindings[bucket] for bucket in buckets}
        self.catalogs.holdings_changed()

    async def make(self, creator: str = GREEDY, name: TopicName | None = None) -> TopicName:
        name = name or next(self._names)
        await self.creations.learn(name.namespace_name, creator)
        binding = self._bindings[bucket_of(name, BUCKETS)]

        def change(known: CatalogEntry | None) -> CatalogEntry:
            return (known or CatalogEntry()).with_log(WHOLE)

        with self.creations.counted(name, None, creator, change) as checked:
            await self.catalogs.change(binding, name, checked)
        return name

    async def made(self, creator: str = GREEDY) -> int:
        """The number of topics that the creator may make in addition."""
        for count in range(100):
            try:
                await self.make(creator)
            except QuotaExceeded:
                return count
        raise AssertionError

    async def delete(self, name: TopicName) -> None:
        binding = self._bindings[bucket_of(name, BUCKETS)]
        await self.catalogs.change(binding, name, lambda _: CatalogEntry(is_deleted=True))


@pytest.fixture
async def installation() -> Installation:
    found = Installation()
    await found.begin()
    return found


async def test_a_restart_forgets_nobodys_topics(installation: Installation) -> None:
    limits = {"topics_per_subject": 5}
    before = installation.broker(0, 1, 2, 3, **limits)
    first = await before.make()
    assert await before.made() == 4
    await before.make(CALM)
    after = installation.broker(3, 2, 1, 0, **limits)
    with pytest.raises(QuotaExceeded, match="subject greedy has 5 topics"):
        await after.make(name=TopicName.parse("another"))
    await after.make(CALM, TopicName.parse("calm"))
    await after.delete(first)
    await after.make(name=TopicName.parse("another"))


@pytest.mark.parametrize("quota", ["topics_per_subject", "topics_per_namespace"])
async def test_topics_of_other_brokers_count(installation: Installation, quota: str) -> None:
    one = installation.broker(0, 1, **{quota: 10})
    other = installation.broker(2, 3, **{quota: 10})
    for _ in range(6):
        await one.make()
    assert await other.made() == 4
    installation.now += ELSEWHERE_SECONDS
    assert await one.made() == 0


async def test_a_namespace_far_below_its_quota_needs_no_request_to_other_brokers(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = installation.broker(0, 1, topics_per_subject=1_000, topics_per_namespace=1_000)
    requests: list[int] = []
    read = broker.catalogs._read

    async def noted(bucket: int, replid: str = "") -> dict[str, CatalogEntry]:
        requests.append(bucket)
        return await read(bucket, replid)

    monkeypatch.setattr(broker.catalogs, "_read", noted)
    for _ in range(10):
        await broker.make()
    assert sorted(requests) == [0, 1]
    await broker.make()
    assert sorted(requests) == [0, 1, 2, 3]
    await broker.make()
    assert sorted(requests) == [0, 1, 2, 3]


async def test_a_change_that_fails_counts_no_longer(installation: Installation) -> None:
    broker = installation.broker(0, 1, 2, 3, topics_per_subject=2, topics_per_namespace=2)
    await broker.make()

    def fails(_: CatalogEntry | None) -> CatalogEntry:
        raise Undecided("the store does not answer")

    name = TopicName.parse("x")
    with pytest.raises(Undecided), broker.creations.counted(name, None, GREEDY, fails) as checked:
        checked(None)

    async def stored_nowhere() -> None:
        with broker.creations.counted(
            name, None, GREEDY, lambda _: CatalogEntry(log_numbers=(WHOLE,))
        ) as checked:
            checked(None)
            with pytest.raises(QuotaExceeded):  # it counts meanwhile
                await broker.make()
            raise Undecided("the store does not answer")

    with pytest.raises(Undecided):
        await stored_nowhere()
    await broker.make()


async def test_the_quota_book_matches_the_catalogs(installation: Installation) -> None:
    broker = installation.broker(0, 1, 2, 3)
    for creator in (GREEDY, GREEDY, CALM, ""):
        await broker.make(creator)
    broker.creations.measure()
    assert broker.quotas.most(Quota.TOPICS_PER_SUBJECT) == (GREEDY, 2)
    assert broker.quotas.most(Quota.TOPICS_PER_NAMESPACE) == ("namespace public/default", 4)


async def test_a_catalog_entry_names_the_creator_of_its_logs() -> None:
    entry = CatalogEntry(log_numbers=(WHOLE,)).with_made(GREEDY, 1).with_log(3).with_made(GREEDY, 1)
    entry = entry.with_log(4).with_made(CALM, 1)
    assert dict(entry.made_by) == {GREEDY: 2, CALM: 1}
    assert CatalogEntry.decode(entry.encode()) == entry
    former = CatalogEntry(log_numbers=(WHOLE,)).encode()
    assert "madeBy" not in former, "brokers of earlier releases read it as before"
    assert dict(CatalogEntry.decode(former).made_by) == {}


async def test_the_sums_of_all_buckets_follow_each_change_of_a_catalog(
    installation: Installation,
) -> None:
    broker = installation.broker(0, 1, 2, 3)

    def sums() -> tuple[int, int, int]:
        catalogs = broker.catalogs
        of_creators = catalogs.made_by(GREEDY), catalogs.made_by(CALM)
        assert of_creators == tuple(catalogs.usage()[1][name] for name in (GREEDY, CALM))
        return catalogs.logs_in("public/default"), *of_creators

    first = await broker.make()
    await broker.make(CALM)
    assert sums() == (2, 1, 1)
    await broker.make()
    assert sums() == (3, 2, 1)
    await broker.delete(first)
    assert sums() == (2, 1, 1)
    bucket = bucket_of(first, BUCKETS)
    broker.catalogs.forget(bucket)
    await broker.creations.learn("public/default", GREEDY)
    assert sums() == (2, 1, 1), "the forgotten catalog was read again"


async def test_buckets_that_come_to_this_broker_count_at_the_next_creation(
    installation: Installation,
) -> None:
    other = installation.broker(2, 3)
    for _ in range(3):
        await other.make()
    broker = installation.broker(0, 1, topics_per_subject=1_000)
    await broker.make()
    assert broker.catalogs.made_by(GREEDY) == 1
    broker.hold(2, 3)
    await broker.make()
    assert broker.catalogs.made_by(GREEDY) == 5


async def test_thousands_of_creations_ask_once_which_buckets_are_held(
    installation: Installation,
) -> None:
    broker = installation.broker(0, 1, 2, 3)
    for _ in range(3):
        await broker.make()
    asked = broker.asked
    for _ in range(10):
        await broker.make()
    assert broker.asked == asked
