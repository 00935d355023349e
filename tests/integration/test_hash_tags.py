"""Topics with a part of their name in braces: they are reached like any other, and never created twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.integration.bare_brokers import bare_broker
from tests.integration.conftest import RawClients
from tests.integration.forked_brokers import BUCKETS
from tests.integration.http_calls import OWN, PERSISTENT, Http
from tests.integration.raw import EXCLUSIVE, RefusedByBroker
from tests.servers import running_server

from onewriter_broker.log.store.keys import Keys
from onewriter_broker.topic.registry.catalog import CatalogEntry
from onewriter_core.errors import ServerError
from onewriter_core.ids import TopicName, bucket_without_tags
from onewriter_testing.processes import LocalBrokers

PROGRAM = str(Path(sys.executable).with_name("onewriter"))
ORDERED_SECONDS = 60.0
"""Time limit of a command that calls one broker and ends by itself long before."""


def test_a_name_in_braces_is_reached_over_http(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    name = f"{{{topic}}}-audit"
    raw(broker.address()).producer(name, EXCLUSIVE).publish(b"1")
    http, path = Http(broker.http_url), quote(name)
    assert http("GET", f"{OWN}/{path}")[1]["state"] == "Held"
    assert http("GET", f"{OWN}/{path}/history")[0] == 200
    assert http("GET", f"{PERSISTENT}/{path}/stats")[0] == 200
    assert http("PUT", f"{PERSISTENT}/{path}/subscription/{quote('{s}')}")[0] == 204
    assert http("GET", f"{PERSISTENT}/{path}/subscriptions")[1] == ["{s}"]
    assert http("GET", f"/lookup/v2/topic/persistent/public/default/{path}")[0] == 200
    assert http("GET", f"/admin/v2/schemas/public/default/{path}/schemas")[0] == 200
    assert http("POST", f"{OWN}/{path}/fence", {})[1]["oldEpoch"] > 0
    reported = subprocess.run(
        [PROGRAM, "status", name, "--http-url", broker.http_url, "-o", "json"],
        capture_output=True,
        text=True,
        timeout=ORDERED_SECONDS,
        check=True,
    )
    assert json.loads(reported.stdout)["name"] == str(TopicName.parse(name))
    assert http("DELETE", f"{PERSISTENT}/{path}?force=true")[0] == 204


def test_a_topic_of_a_version_without_hash_tags_does_not_begin_again(raw: RawClients) -> None:
    name = TopicName.parse("{orders}-audit")
    keys = Keys(BUCKETS)
    former = bucket_without_tags(name, keys.buckets)
    assert former != keys.bucket(name)
    with running_server() as server, bare_broker(server.url) as brokers:
        server.command(
            "HSET", keys.topics(former), str(name), CatalogEntry(log_numbers=(-1,)).encode()
        )
        client = raw(brokers.address())
        for ask in (lambda: client.producer(str(name)), lambda: client.subscribe(str(name))):
            with pytest.raises(RefusedByBroker, match=f"bucket {former}") as refused:
                ask()
            assert refused.value.code is ServerError.NOT_ALLOWED_ERROR
        client.producer("{orders}-other").publish(b"1")
