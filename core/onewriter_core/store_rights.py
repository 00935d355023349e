"""The ACL rules of the brokers' user of the store, and of the users that keep a cluster.

The broker checks that the server grants it no other rights. Code that sets up servers uses the same rules. They name
only the commands that a broker sends, by itself or in its scripts.

docs/operations.md ("What the store's password allows") lists what a client with this password can do. An ACL cannot
express less: it names commands and subcommands, not their parameters.
"""

from __future__ import annotations

from typing import Final

_COMMANDS: Final = (
    # in scripts, on keys that the script names
    "xadd",
    "xrange",
    "xrevrange",
    "xtrim",
    "xdel",
    "xinfo|stream",
    "exists",
    "hget",
    "hmget",
    "hset",
    "hdel",
    # by the broker itself, in addition to those above
    "hgetall",
    "info",
    "eval",  # the check at the start, whether scripts can read the dataset's id
    "evalsha",
    "script|load",
    "multi",
    "exec",
    "wait",
    "config|get",  # appendfsync and min-replicas-to-write, which INFO does not show
    "cluster|nodes",  # which primary of a cluster serves what
    "client|id",
    "client|kill",  # its own former connection, so that no command sent there is executed late
)


def broker_acl_rules() -> str:
    """The rules of ``ACL SETUSER`` for a broker; add ``on`` and a password.

    No key outside ``ow:*``, no channel, and no command that replaces a key, lowers a stream's last id
    or changes the server. A user with these rules can still remove entries (XTRIM, XDEL) and fields (HDEL), and
    raise a stream's last id until the stream accepts no entry (XADD).
    """
    rules = ["resetkeys", "resetchannels", "~ow:*", "-@all", *(f"+{name}" for name in _COMMANDS)]
    return " ".join(rules)


_OPERATOR_COMMANDS: Final = (
    "ping",
    "info",
    "cluster|nodes",
    "cluster|info",
    "cluster|meet",
    "cluster|addslotsrange",
    "cluster|replicate",
    "cluster|forget",
    "cluster|failover",
)


def operator_acl_rules() -> str:
    """The rules of ``ACL SETUSER`` for the operator, which forms and repairs a cluster; add ``on`` and a password.

    The user reads and writes no key, and has no command that deletes data.
    """
    rules = ["resetkeys", "resetchannels", "-@all", *(f"+{name}" for name in _OPERATOR_COMMANDS)]
    return " ".join(rules)


def replica_acl_rules() -> str:
    """The rules of ``ACL SETUSER`` for the replicas of a cluster; add ``on`` and a password."""
    return "resetkeys resetchannels -@all +ping +psync +replconf"
