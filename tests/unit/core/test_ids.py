"""Names of topics, whole and in parts."""

from __future__ import annotations

import pytest

from onewriter_core.ids import TopicName, bucket_of, bucket_without_tags


@pytest.mark.parametrize(
    ("written", "local_name"),
    [
        ("orders", "orders"),
        ("persistent://shop/eu/a/b c", "a/b c"),
        ("shop/eu/orders-partition-12", "orders-partition-12"),
        ("shop/eu/orders-partition-012", "orders-partition-012"),
        ("shop/eu/a/b-partition-0", "a/b-partition-0"),
    ],
)
def test_the_local_name_is_everything_after_the_namespace(written: str, local_name: str) -> None:
    name = TopicName.parse(written)
    assert name.local_name == local_name
    assert str(name) == f"{name.domain}://{name.namespace_name}/{local_name}"


def test_a_name_is_parsed_once_and_its_parts_keep_their_own_texts() -> None:
    name = TopicName.parse("orders-partition-3")
    assert TopicName.parse("orders-partition-3") is name
    assert str(name) == "persistent://public/default/orders-partition-3"
    assert str(name.base) == "persistent://public/default/orders"
    assert str(name.base.with_partition(4)) == "persistent://public/default/orders-partition-4"
    assert name == TopicName("public", "default", "orders", 3)
    assert hash(name) == hash(TopicName("public", "default", "orders", 3))
    assert "_text" not in repr(name)


def test_the_bucket_of_a_name_is_that_of_its_base_and_its_tag_for_any_number_of_buckets() -> None:
    base = TopicName.parse("orders")
    expected = {buckets: bucket_without_tags(base, buckets) for buckets in (1, 7, 64, 4096)}
    for text in ("orders", "orders-partition-3", "{orders}-audit", "{orders}-audit-partition-0"):
        name = TopicName.parse(text)
        for _ in range(2):  # the second time from what the name keeps
            assert {buckets: bucket_of(name, buckets) for buckets in expected} == expected
        assert "_number" not in repr(name)
    plain = TopicName.parse("persistent://public/default/{a}-b")
    bucket_of(plain, 64)
    assert bucket_without_tags(plain, 64) != bucket_of(plain, 64)
