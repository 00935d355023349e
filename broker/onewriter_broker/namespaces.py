"""Tenants, namespaces and clusters: those that administrators created, and those of the settings.

They are configuration, which all brokers share through the store's settings hash and cache here. A change by
another broker is visible after REFRESH_SECONDS at most. Policies are stored and returned; docs/http.md says
which of them have an effect. Topics are not stored here, but in the catalog (topic/registry/catalog.py).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Collection, Mapping
from typing import Final

import structlog

from onewriter_broker.log.store.api import LogStore
from onewriter_core.errors import OnewriterError, Refused, ServerError
from onewriter_core.ids import escaped

REFRESH_SECONDS: Final = 1.0
"""Interval between two reads of other brokers' changes."""

TENANTS_MAX: Final = 1_000
NAMESPACES_MAX: Final = 10_000
CLUSTERS_MAX: Final = 100

POLICY_BYTES_MAX: Final = 16 * 1024
"""Bytes of a policy, a tenant or a cluster as JSON."""

POLICIES_MAX: Final = 100
"""Policies of one namespace, and also its permissions."""

UNREADABLE_REPORTED_MAX: Final = 100
"""Fields of the settings hash without valid JSON that one reading reports."""

VALUE_SHOWN_MAX: Final = 40
"""Characters of an unreadable value that a report shows."""

ALL: Final = "*"
"""Means every namespace in the settings."""

STANDALONE: Final = "standalone"
"""The cluster that always exists; Pulsar's name for a single one."""

CONFIGURED_TENANT: Final = "public"

_NAME = re.compile(r"^[-=:.\w]{1,128}$", re.ASCII)
_TENANT, _NAMESPACE, _CLUSTER, _POLICY = "tenant/", "namespace/", "cluster/", "policy/"
_PREFIXES = (_TENANT, _NAMESPACE, _CLUSTER, _POLICY)

log = structlog.get_logger(__name__)


class Conflict(Refused):
    """What was to be created exists already, or what was to be removed is still in use."""

    def __init__(self, message: str) -> None:
        super().__init__(ServerError.NOT_ALLOWED_ERROR, message)


class NamespaceMissing(Refused):
    """There is no such tenant, namespace or cluster."""

    def __init__(self, message: str) -> None:
        super().__init__(ServerError.TOPIC_NOT_FOUND, message)


class Invalid(Refused):
    """A name or a value that is not allowed."""

    def __init__(self, message: str) -> None:
        super().__init__(ServerError.INVALID_TOPIC_NAME, message)


class Namespaces:
    """The namespaces whose topics need no declaration, as a container of ``tenant/namespace`` names.

    ``configured`` are the namespaces in the settings. They always exist. The others are in the store. A method
    that changes one raises Undecided if the store does not answer, and Conflict, Missing or Invalid if the
    change is not allowed.
    """

    def __init__(self, store: LogStore, configured: Collection[str]) -> None:
        self.configured = frozenset(name.strip() for name in configured if name.strip())
        self.version = 0
        """Increases with each change, by this broker or another one."""
        self._store = store
        self._stored: dict[str, str] = {}
        self._unreadable: frozenset[str] = frozenset()
        self._is_known = False

    def __contains__(self, namespace: object) -> bool:
        return (
            namespace in self.configured
            or ALL in self.configured
            or (isinstance(namespace, str) and _NAMESPACE + namespace in self._stored)
        )

    async def run(self) -> None:
        """Read other brokers' changes until cancelled."""
        while True:
            try:
                await self.refresh()
            except OnewriterError as error:
                log.debug("namespaces.store_away", reason=str(error))
            await asyncio.sleep(REFRESH_SECONDS)

    async def refresh(self) -> None:
        """Read everything again. Raises Undecided."""
        stored = await self._store.read_settings()
        unreadable = frozenset(
            key for key, text in stored.items() if not self._is_readable(key, text)
        )
        for key in sorted(unreadable - self._unreadable)[:UNREADABLE_REPORTED_MAX]:
            log.error(
                "namespaces.unreadable", field=escaped(key), value=stored[key][:VALUE_SHOWN_MAX]
            )
        self._unreadable = unreadable
        self._replace({key: text for key, text in stored.items() if key not in unreadable})
        self._is_known = True

    def _is_readable(self, key: str, text: str) -> bool:
        """Whether a field of the settings hash is JSON, as brokers write it. An unreadable one counts as not set: it must
        not stop the brokers, which all read it.
        """
        if self._stored.get(key) == text or not key.startswith(_PREFIXES):
            return True
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return False
        return True

    async def known(self) -> None:
        """Return once everything was read: a topic must not be served with unknown policies.

        Raises Undecided.
        """
        if not self._is_known:
            await self.refresh()

    def _replace(self, stored: dict[str, str]) -> None:
        if stored != self._stored:
            self._stored = stored
            self.version += 1

    async def _write(self, fields: Mapping[str, str], remove: tuple[str, ...] = ()) -> None:
        await self._store.set_settings(fields, remove)
        kept = {key: text for key, text in self._stored.items() if key not in remove}
        self._replace({**kept, **fields})

    def _under(self, prefix: str) -> list[str]:
        return sorted(key.removeprefix(prefix) for key in self._stored if key.startswith(prefix))

    # ------------------------------------------------------------ tenants

    def tenants(self) -> list[str]:
        """All tenants, by name."""
        named = {name.partition("/")[0] for name in self.configured if name != ALL}
        return sorted({CONFIGURED_TENANT, *named, *self._under(_TENANT)})

    def tenant(self, name: str) -> dict[str, object]:
        """A tenant in Pulsar's format."""
        stored = self._stored.get(_TENANT + name)
        if stored is not None:
            return _object(stored)
        if name not in self.tenants():
            raise NamespaceMissing("Tenant does not exist")
        return {"adminRoles": [], "allowedClusters": [STANDALONE]}

    async def create_tenant(self, name: str, info: Mapping[str, object]) -> None:
        """Create a tenant."""
        await self.refresh()
        if not _NAME.match(name):
            raise Invalid("Tenant name is not valid")
        if name in self.tenants():
            raise Conflict("Tenant already exist")
        if len(self._under(_TENANT)) >= TENANTS_MAX:
            raise Invalid(f"there are {TENANTS_MAX} tenants already")
        await self._write({_TENANT + name: self._tenant_text(info)})

    async def update_tenant(self, name: str, info: Mapping[str, object]) -> None:
        """Replace the stored data of a tenant."""
        await self.refresh()
        if name not in self.tenants():
            raise NamespaceMissing(f"Tenant {name} not found")
        await self._write({_TENANT + name: self._tenant_text(info)})

    def _tenant_text(self, info: Mapping[str, object]) -> str:
        clusters = info.get("allowedClusters")
        if not isinstance(clusters, list) or not clusters:
            raise Invalid("Clusters cannot be empty or blank")
        if not {str(cluster) for cluster in clusters} <= set(self.clusters()):
            raise Invalid("Clusters do not exist")
        return text_of({"adminRoles": info.get("adminRoles") or [], "allowedClusters": clusters})

    async def delete_tenant(self, name: str) -> None:
        """Remove a tenant that has no namespaces."""
        await self.refresh()
        if name not in self.tenants():
            raise NamespaceMissing("Tenant doesn't exist")
        if self.of_tenant(name):
            raise Conflict("The tenant still has active namespaces")
        if _TENANT + name not in self._stored:
            raise Conflict(f"tenant {name} is there by configuration")
        await self._write({}, (_TENANT + name,))

    # ------------------------------------------------------------ namespaces

    def of_tenant(self, tenant: str) -> list[str]:
        """The tenant's namespaces as ``tenant/namespace``; raises NamespaceMissing."""
        if tenant not in self.tenants():
            raise NamespaceMissing("Tenant not found")
        found = {*self.configured, *self._under(_NAMESPACE)}
        return sorted(name for name in found if name.startswith(f"{tenant}/"))

    def require(self, namespace: str, message: str = "Namespace does not exist") -> None:
        """Raise Missing for a namespace that was not created."""
        if namespace not in self:
            raise NamespaceMissing(message)

    async def create(self, namespace: str, policies: Mapping[str, object]) -> None:
        """Create a namespace. ``policies`` is Pulsar's Policies object, stored unchanged."""
        await self.refresh()
        tenant, _, local = namespace.partition("/")
        if not _NAME.match(local):
            raise Invalid("Namespace name is not valid")
        if tenant not in self.tenants():
            raise NamespaceMissing("Tenant does not exist")
        if namespace in self.configured or _NAMESPACE + namespace in self._stored:
            raise Conflict("Namespace already exists")
        if len(self._under(_NAMESPACE)) >= NAMESPACES_MAX:
            raise Invalid(f"there are {NAMESPACES_MAX} namespaces already")
        await self._write({_NAMESPACE + namespace: text_of(dict(policies))})

    async def delete(self, namespace: str) -> None:
        """Delete a namespace and its policies. The caller has handled its topics."""
        if namespace in self.configured:
            raise Conflict(f"namespace {namespace} is there by configuration")
        self.require(namespace, f"Namespace {namespace} does not exist.")
        policies = (f"{_POLICY}{namespace}/{name}" for name in self._under(_policies(namespace)))
        await self._write({}, (_NAMESPACE + namespace, *policies))

    def created_with(self, namespace: str) -> dict[str, object]:
        """The Policies object with which the namespace was created."""
        return _object(self._stored.get(_NAMESPACE + namespace, "{}"))

    # ------------------------------------------------------------ policies

    def policies(self, namespace: str) -> dict[str, object]:
        """Every policy that was set, by name."""
        self.require(namespace)
        prefix = _policies(namespace)
        return {name: json.loads(self._stored[prefix + name]) for name in self._under(prefix)}

    def policy(self, namespace: str, name: str) -> object:
        """One policy; None when it was never set."""
        return self.policies(namespace).get(name)

    def effective(self, namespace: str, path: str, field: str) -> object:
        """The value of a policy: the one that was set by itself (``path``), otherwise ``field`` of the Policies
        object with which the namespace was created.

        None if neither exists, also for a namespace that does not exist.
        """
        text = self._stored.get(_policies(namespace) + path)
        if text is not None:
            return json.loads(text)
        return self.created_with(namespace).get(field) if field else None

    async def set_policy(self, namespace: str, name: str, value: object) -> None:
        """Store one policy. Each policy is a separate field, so brokers do not overwrite each other's
        changes.
        """
        self.require(namespace)
        prefix = _policies(namespace)
        if prefix + name not in self._stored and len(self._under(prefix)) >= POLICIES_MAX:
            raise Invalid(f"{namespace} has {POLICIES_MAX} policies already")
        await self._write({prefix + name: text_of(value)})

    async def remove_policy(self, namespace: str, name: str) -> None:
        """Return to the default."""
        self.require(namespace)
        await self._write({}, (_policies(namespace) + name,))

    # ------------------------------------------------------------ clusters

    def clusters(self) -> list[str]:
        """All clusters, by name."""
        return sorted({STANDALONE, *self._under(_CLUSTER)})

    def cluster(self, name: str) -> dict[str, object] | None:
        """The stored data of a cluster; None for one that was never changed; raises NamespaceMissing."""
        if name not in self.clusters():
            raise NamespaceMissing("Cluster does not exist")
        stored = self._stored.get(_CLUSTER + name)
        return None if stored is None else _object(stored)

    async def put_cluster(self, name: str, data: Mapping[str, object], *, is_new: bool) -> None:
        """Create or change a cluster."""
        await self.refresh()
        if not _NAME.match(name):
            raise Invalid("Cluster name is not valid")
        if is_new and name in self.clusters():
            raise Conflict("Cluster already exists")
        if not is_new and name not in self.clusters():
            raise NamespaceMissing("Cluster does not exist")
        if len(self._under(_CLUSTER)) >= CLUSTERS_MAX:
            raise Invalid(f"there are {CLUSTERS_MAX} clusters already")
        await self._write({_CLUSTER + name: text_of(dict(data))})

    async def delete_cluster(self, name: str) -> None:
        """Delete a cluster."""
        await self.refresh()
        if name == STANDALONE:
            raise Conflict(f"cluster {STANDALONE} is this one")
        self.cluster(name)
        await self._write({}, (_CLUSTER + name,))


def _policies(namespace: str) -> str:
    return f"{_POLICY}{namespace}/"


def _object(text: str) -> dict[str, object]:
    if text == "{}":  # of most namespaces, and read for each topic that is loaded
        return {}
    value = json.loads(text)
    return value if isinstance(value, dict) else {}


def text_of(value: object) -> str:
    """A value in its stored form; raises Invalid for one that is too large."""
    text = json.dumps(value)
    if len(text) > POLICY_BYTES_MAX:
        raise Invalid(f"a value has at most {POLICY_BYTES_MAX} bytes of JSON")
    return text
