"""Names of topics, whole and in parts."""

from __future__ import annotations

import pytest

from onewriter_core.ids import TopicName


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
def test_the_local_name_is_all_that_stands_behind_the_namespace(
    written: str, local_name: str
) -> None:
    name = TopicName.parse(written)
    assert name.local_name == local_name
    assert str(name) == f"{name.domain}://{name.namespace_name}/{local_name}"
