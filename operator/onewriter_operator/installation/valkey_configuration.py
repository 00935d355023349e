"""The ConfigMap of the installed store: its configuration, the brokers' rights, and its start script.

It contains no passwords: ``valkey.sh`` writes the file of users from the mounted Secret, and again
after each change of the Secret.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import Any, Final

from onewriter_core.store_rights import broker_acl_rules, operator_acl_rules, replica_acl_rules
from onewriter_operator.configuration import PORT_STORE, PORT_STORE_BUS, Configuration
from onewriter_operator.installation import names

DIRECTORY: Final = "/etc/onewriter/valkey"
RUN_DIRECTORY: Final = "/run/valkey"
DATA_DIRECTORY: Final = "/data"
TLS_DIRECTORY: Final = "/run/onewriter/store-tls"
SCRIPT: Final = "valkey.sh"

NODE_TIMEOUT_MS: Final = 2000
"""After this time without an answer the other nodes of a cluster vote a primary down."""


def config_map(configuration: Configuration) -> dict[str, Any] | None:
    """The ConfigMap; None with an external store."""
    if configuration.external_store.is_used:
        return None
    name = names.component(configuration, names.VALKEY)
    data = {
        "valkey.conf": directives(configuration),
        "rights": broker_acl_rules() + "\n",
        SCRIPT: resources.files(__package__).joinpath(SCRIPT).read_text(encoding="utf-8"),
    }
    if configuration.has_cluster:
        data["cluster-users"] = (
            f"{names.STORE_OPERATOR} {operator_acl_rules()}\n{names.STORE_REPLICA} {replica_acl_rules()}\n"
        )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": names.metadata(configuration, name, names.VALKEY),
        "data": data,
    }


def digest(configuration: Configuration) -> str:
    """A hash that changes if the server must restart to follow its configuration."""
    document = config_map(configuration)
    return hashlib.sha256(repr(document and document["data"]).encode()).hexdigest()[:16]


def directives(configuration: Configuration) -> str:
    """The server's configuration file."""
    options = configuration.valkey
    values: dict[str, object] = {
        "bind": "* -::*",
        "port": PORT_STORE,
        "protected-mode": "no",
        "daemonize": "no",
        "dir": DATA_DIRECTORY,
        "aclfile": f"{RUN_DIRECTORY}/users.acl",
        "appendonly": "yes",
        "appendfsync": options.append_sync.value,
        "no-appendfsync-on-rewrite": "no",
        "aof-load-truncated": "yes",
        # Clients compress; a second compression in each rewrite costs more CPU than all appends.
        "rdbcompression": "no",
        "save": '""',
        "maxmemory": options.memory_bytes,
        "maxmemory-policy": "noeviction",
        "repl-backlog-ttl": 0,
        "hz": 100,
        "tcp-keepalive": 15,
        "shutdown-timeout": 10,
        **(_cluster_directives() if configuration.has_cluster else {}),
        **(_tls_directives(configuration) if configuration.store.tls.secret_name else {}),
        **options.settings,
    }
    return "".join(f"{name} {_text(value)}\n" for name, value in values.items())


def _cluster_directives() -> dict[str, object]:
    """What each process of a cluster needs in addition; see docs/adr/0023-valkey-cluster.md.

    The included file has the pod's address and the password of the replicas. The script writes it.
    """
    return {
        "include": f"{RUN_DIRECTORY}/cluster.conf",
        "masteruser": names.STORE_REPLICA,
        "cluster-enabled": "yes",
        "cluster-config-file": "nodes.conf",
        "cluster-port": PORT_STORE_BUS,
        "cluster-node-timeout": NODE_TIMEOUT_MS,
        "cluster-preferred-endpoint-type": "hostname",
        "cluster-require-full-coverage": "no",
        "cluster-allow-replica-migration": "no",
        "cluster-replica-validity-factor": 10,
        "cluster-allow-reads-when-down": "no",
        "repl-diskless-load": "disabled",
        "repl-diskless-sync-delay": 0,
        "repl-backlog-size": "64mb",
        "min-replicas-to-write": 0,
    }


def _tls_directives(configuration: Configuration) -> dict[str, object]:
    """The port without TLS is closed. Clients prove who they are by their passwords; on the cluster bus, which has none,
    the server itself requires certificates of this authority.
    """
    found: dict[str, object] = {
        "port": 0,
        "tls-port": PORT_STORE,
        "tls-cert-file": f"{TLS_DIRECTORY}/tls.crt",
        "tls-key-file": f"{TLS_DIRECTORY}/tls.key",
        "tls-ca-cert-file": f"{TLS_DIRECTORY}/ca.crt",
        "tls-auth-clients": "no",
    }
    if configuration.has_cluster:
        found |= {"tls-replication": "yes", "tls-cluster": "yes"}
    return found


def _text(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
