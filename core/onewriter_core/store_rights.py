"""What the brokers' own user of the store may do: the rules of its ACL.

Known to the broker, which checks that a server gives it no more, and to whoever sets servers up.
The rules name the commands that a broker sends, itself or in its scripts, and no others.

What the password still allows is said in docs/operations.md ("What the store's password allows"). An
ACL cannot express less: it names commands and subcommands, not their parameters.
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
    # by the broker itself, beside those above
    "hgetall",
    "info",
    "eval",  # the check at the start, whether scripts can read the dataset's id
    "evalsha",
    "script|load",
    "multi",
    "exec",
    "wait",
    "config|get",  # appendfsync and min-replicas-to-write, which INFO does not show
    "client|id",
    "client|kill",  # its own former connection, so that nothing sent there is executed late
)


def broker_acl_rules() -> str:
    """The rules of ``ACL SETUSER`` for a broker; add ``on`` and a password.

    No key outside ``ow:*``, no channel, and no command that replaces a key, lowers a stream's last id
    or changes the server. A user with these rules can still remove entries (XTRIM, XDEL), fields
    (HDEL), and raise a stream's last id so far that it takes nothing more (XADD).
    """
    rules = ["resetkeys", "resetchannels", "~ow:*", "-@all", *(f"+{name}" for name in _COMMANDS)]
    return " ".join(rules)
