"""The objects that the operator installs: pure builders from the configuration, one file per object.

The operator applies ``objects`` server-side with every reconcile. ``created_once`` are Secrets with a
password or token: it creates each if missing and never overwrites it. The chart installs the objects
that the operator itself needs (its rights, the brokers' ServiceAccount).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onewriter_operator.configuration import Configuration
from onewriter_operator.installation import (
    broker_authority,
    broker_services,
    brokers,
    disruption_budgets,
    network_policies,
    passwords,
    valkey,
    valkey_configuration,
    valkey_service,
)

Json = dict[str, Any]


def objects(
    configuration: Configuration,
    owner: Mapping[str, Any] | None = None,
    authority: str = "",
) -> list[Json]:
    """All objects, in the order in which to apply them.

    ``owner`` is an object of the same namespace, as the API server returned it. Uninstalling onewriter
    deletes it, and Kubernetes then deletes the applied objects; volumes stay. ``authority``: the CA of
    the brokers' certificate as PEM; empty if unknown, then it is not published.
    """
    found: list[Json | None] = [
        valkey_configuration.config_map(configuration),
        valkey_service.service(configuration),
        broker_services.clients(configuration),
        broker_services.pods(configuration),
        broker_authority.config_map(configuration, authority),
        *network_policies.policies(configuration),
        *disruption_budgets.budgets(configuration),
        *valkey.stateful_sets(configuration),
        brokers.stateful_set(configuration),
    ]
    return [_owned(each, owner) for each in found if each is not None]


def created_once(
    configuration: Configuration, owner: Mapping[str, Any] | None = None
) -> list[Json]:
    """Secrets to create if they do not exist; existing ones stay unchanged."""
    found = [
        passwords.store_password(configuration),
        passwords.cluster_password(configuration),
        passwords.metrics_token(configuration),
    ]
    return [_owned(each, owner) for each in found if each is not None]


def _owned(document: Json, owner: Mapping[str, Any] | None) -> Json:
    if owner is not None:
        document["metadata"]["ownerReferences"] = [owner_reference(owner)]
    return document


def owner_reference(owner: Mapping[str, Any]) -> Json:
    """The reference to an owner, as the API server returned it."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
