"""``onewriter adopt``: the operator that the audit names."""

from __future__ import annotations

import asyncio
import getpass
import os

import pytest

from onewriter_broker.ownership.acquisition import Forced
from onewriter_broker.ownership.buckets import ACQUISITIONS_MAX
from onewriter_broker.verbs import adopt
from onewriter_core.errors import Unavailable


def test_a_user_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    assert adopt._user() == "ada"


@pytest.mark.parametrize("error", [KeyError, OSError])
def test_a_user_without_a_name_is_numbered(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fails() -> str:
        raise error("getpwuid(): uid not found: 65532")

    monkeypatch.setattr(getpass, "getuser", fails)
    assert adopt._user() == str(os.getuid())


async def test_buckets_are_adopted_together_but_a_limited_number_at_a_time() -> None:
    under_way, most = set[int](), 0

    async def work(bucket: int) -> Forced:
        nonlocal most
        under_way.add(bucket)
        most = max(most, len(under_way))
        for _ in range(200 - bucket):  # the first one ends last
            await asyncio.sleep(0)
        under_way.remove(bucket)
        return Forced(bucket, 1, "")

    results = await adopt._for_each(range(200), work)
    assert [result.bucket for result in results] == list(range(200))
    assert most == ACQUISITIONS_MAX


async def test_the_first_failure_is_raised_after_all_have_ended() -> None:
    ended = set[int]()

    async def work(bucket: int) -> Forced:
        for _ in range(10 - bucket):
            await asyncio.sleep(0)
        ended.add(bucket)
        if bucket in {3, 7}:
            raise Unavailable(f"bucket {bucket}")
        return Forced(bucket, 1, "")

    with pytest.raises(Unavailable, match="bucket 3"):
        await adopt._for_each(range(10), work)
    assert ended == set(range(10))
