"""The status of a topic that is served here: what ``GET .../topics/...`` and the watch both show."""

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
    """What is known of any topic: where it is served, and if not, why."""
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
    """A loaded topic's status; ``seen`` is the store as it was last looked at."""
    clients = site.clients
    return (
        place(site, topic.name, topic.entry, is_secure=is_secure)
        | views.loaded_status(topic, clients.now(), clients.wall_ms())
        | {
            "store": None if seen is None else views.store(seen),
            "losses": losses(site, topic.name),
        }
    )


def losses(site: Site, name: TopicName) -> list[dict[str, Any]]:
    """Acknowledged entries of the topic that were found missing."""
    return [views.loss(each) for each in site.losses if each.topic.base == name]


def owner(site: Site, name: TopicName, *, is_secure: bool = False) -> dict[str, str] | None:
    """Where the topic is served, for a caller who came over TLS or not; None when that is not known."""
    found = site.topics.ownership.owner_of(site.topics.bucket_of(name))
    if found is None:
        return None
    return addresses(site, found, is_secure=is_secure)


def addresses(site: Site, found: Addresses, *, is_secure: bool = False) -> dict[str, str]:
    """A broker's addresses as answers show them; ``is_secure``: the caller came over TLS."""
    named = site.clients.named(found, is_secure=is_secure)
    return {"brokerUrl": named.broker_url, "httpUrl": named.http_url}
