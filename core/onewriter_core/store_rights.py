"""What the brokers' own user of the store may do: the rules of its ACL.

Known to the broker, which checks that a server gives it no more, and to whoever sets servers up.
"""

from __future__ import annotations

from typing import Final

_COMMANDS: Final = (
    "xadd xrange xrevrange xread xtrim xdel xinfo xlen exists hget hmget hgetall hset hdel hexists "
    "info eval evalsha script|load config|get wait role ping hello auth client multi exec"
)


def broker_acl_rules() -> str:
    """The rules of ``ACL SETUSER`` for a broker; add ``on`` and a password.

    No key outside ``ow:*``, and nothing that could remove, replace or rewind a log. XDEL is for publishes
    that were cut short; it lowers no number, and who may trim a log can take out more.
    """
    names = _COMMANDS.split()
    return " ".join(["resetkeys", "resetchannels", "~ow:*", "-@all", *(f"+{n}" for n in names)])
