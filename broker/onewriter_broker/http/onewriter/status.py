"""The status of a topic that this broker serves, for ``GET .../topics/...`` and for the watch."""

from __future__ import annotations

from typing import Any

from onewriter_broker.anchor.api import Addresses
from onewriter_broker.connection.lookups import why_not_served
from onewriter_broker.http.onewriter import views
from onewriter_broker.http.site import Site
from onewriter_broker.log.store.api import Observation
from onewriter_broker.topic.registry.catalog import CatalogEntry
from onewriter_broker.topic.registry.loaded_topic import LoadedTopic
from onewriter_core.ids import TopicName


def place(
    site: Site, name: TopicName, entry: CatalogEntry, *, is_secure: bool = False
) -> dict[str, Any]:
    """The part of the status that is known for every topic: where it is served, or why it is not."""
    topics = site.topics
    bucket = topics.bucket_of(name)
    is_declared = topics.desired.topic(name) is not None
    is_owned = topics.is_owned(name)
    served_at = owner(site, name, is_secure=is_secure)
    return views.summary(str(name), entry, is_declared=is_declared, owner=served_at) | {
        "bucket": bucket,
        "served": is_owned,
        "waitingReason": topics.ownership.waiting_reason(bucket)
        or topics.broken.reason(name)
        or ("" if is_owned else why_not_served(topics, name)),
        "broker": site.incarnation,
    }


def served_status(
    site: Site, topic: LoadedTopic, seen: Observation | None, *, is_secure: bool = False
) -> dict[str, Any]:
    """The status of a loaded topic; ``seen`` is the latest observation of the store.

    If transitions of former brokers are missing, they are read soon, and watchers get the status again.
    """
    clients = site.clients
    topic.runner.history.recall_soon(topic.runner.guarded)
    return (
        place(site, topic.name, topic.entry, is_secure=is_secure)
        | views.loaded_status(topic, clients.now(), clients.wall_ms())
        | {
            "store": None if seen is None else views.store(seen),
        }
        | losses(site, topic.name)
    )


def shard(site: Site, bucket: int) -> dict[str, Any] | None:
    """The shard of a cluster that has the bucket, by its latest observation; None if the store is not a cluster."""
    for state, failovers in site.shards():
        if state.buckets is not None and bucket in state.buckets:
            return views.shard(state, failovers, step_bytes=1)
    return None


def losses(site: Site, name: TopicName) -> dict[str, list[dict[str, Any]]]:
    """Losses of acknowledged entries of the topic, and ranges in which entries were perhaps lost."""
    return {
        "losses": [views.loss(each) for each in site.losses.of(name)],
        "atRisk": [views.at_risk(each) for each in site.at_risk.of(name)],
    }


def owner(site: Site, name: TopicName, *, is_secure: bool = False) -> dict[str, str] | None:
    """The address of the topic's broker, for a caller over TLS or not; None if it is not known."""
    found = site.topics.ownership.owner_of(site.topics.bucket_of(name))
    if found is None:
        return None
    return addresses(site, found, is_secure=is_secure)


def addresses(site: Site, found: Addresses, *, is_secure: bool = False) -> dict[str, str]:
    """A broker's addresses in the format of responses; ``is_secure``: the caller uses TLS."""
    named = site.clients.named(found, is_secure=is_secure)
    return {"brokerUrl": named.broker_url, "httpUrl": named.http_url}
