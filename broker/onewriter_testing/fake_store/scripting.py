"""Lua 5.1 as the server runs it: the real scripts, with ``redis.call``, ``redis.pcall`` and ``KEYS`` and ``ARGV``.

Values are converted as the server's documentation describes: a number becomes an integer, false and nil a null, a table
an array that ends at its first nil, a table with ``ok`` or ``err`` a status or an error. A script that fails keeps what it
has written until then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from onewriter_core.errors import ConfigurationError, install_command
from onewriter_testing.fake_store.commands import Call, CommandError, Reply, Status, Words

try:
    import lupa.lua51 as lupa
except ImportError as error:  # pragma: no cover - an extra
    raise ConfigurationError(
        "the in-process broker executes the store's Lua scripts with lupa, which is not installed: "
        f"run {install_command('testing')}"
    ) from error

_LIBRARY = b"""
local call, KEYS, ARGV, script = ...
local redis = {}
function redis.pcall(...)
  return call(...)
end
function redis.call(...)
  local reply = call(...)
  if type(reply) == 'table' and reply.err then error(reply) end
  return reply
end
function redis.error_reply(text) return { err = text } end
function redis.status_reply(text) return { ok = text } end
setfenv(script, setmetatable({ redis = redis, KEYS = KEYS, ARGV = ARGV }, {
  __index = _G,
  __newindex = function(_, name) error('a script sets the global ' .. tostring(name)) end,
}))
local succeeded, answer = pcall(script)
return succeeded, answer
"""


class Scripts:
    """The loaded scripts of a server, and the interpreter that runs them."""

    def __init__(self) -> None:
        self._lua: Any = lupa.LuaRuntime(
            encoding=None, register_eval=False, unpack_returned_tuples=True
        )
        self._run: Callable[..., Any] = self._lua.compile(_LIBRARY)
        self._type: Callable[[Any], bytes] = self._lua.globals().type
        self._sources: dict[bytes, bytes] = {}
        self._compiled: dict[bytes, Any] = {}

    def load(self, source: bytes) -> bytes:
        """Load a script and return its digest."""
        digest = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
        self._sources[digest] = source
        return digest

    def evaluate(
        self, digest: bytes, keys: Sequence[bytes], arguments: Sequence[bytes], call: Call
    ) -> Reply:
        """Run a script. Raises CommandError for its error, and NOSCRIPT for an unknown one."""
        script = self._compiled.get(digest)
        if script is None:
            source = self._sources.get(digest)
            if source is None:
                raise CommandError("NOSCRIPT No matching script. Please use EVAL.")
            script = self._compiled[digest] = self._lua.compile(source)
        call.declared = frozenset(keys)
        table = self._lua.table_from
        succeeded, answer = self._run(
            lambda *words: self._called(call, words), table(keys), table(arguments), script
        )
        if succeeded:
            return self._reply(answer)
        raise CommandError(self._error(answer))

    def _called(self, call: Call, words: Sequence[object]) -> object:
        """``redis.pcall``: the reply as a Lua value, an error as a table."""
        try:
            return self._value(call.run(_words(words)))
        except CommandError as error:
            return self._lua.table_from({b"err": str(error).encode()})

    def _value(self, reply: Reply) -> object:
        match reply:
            case Status():
                return self._lua.table_from({b"ok": bytes(reply)})
            case list():
                return self._lua.table_from([self._value(each) for each in reply])
            case None:
                return False
            case _:
                return reply

    def _reply(self, value: Any) -> Reply:
        if value is None or value is False:
            return None
        if value is True:
            return 1
        if isinstance(value, bytes):
            return value
        if isinstance(value, int | float):
            return int(value)
        if lupa.lua_type(value) != "table":
            return None
        if value[b"err"] is not None:
            raise CommandError(value[b"err"].decode(errors="replace"))
        if value[b"ok"] is not None:
            return Status(value[b"ok"])
        found: list[Reply] = []
        while (item := value[len(found) + 1]) is not None:
            found.append(self._reply(item))
        return found

    def _error(self, value: Any) -> str:
        if lupa.lua_type(value) == "table" and value[b"err"] is not None:
            text: bytes = value[b"err"]
            return text.decode(errors="replace")
        text = value if isinstance(value, bytes) else str(value).encode()
        return f"ERR {text.decode(errors='replace')}"


def _words(values: Sequence[object]) -> Words:
    """The arguments of redis.call: strings, and numbers as the server writes them."""
    words = []
    for value in values:
        if isinstance(value, bytes):
            words.append(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            words.append(b"%d" % value)
        elif isinstance(value, float):
            words.append(b"%.17g" % value)
        else:
            raise CommandError("ERR Lua redis lib command arguments must be strings or integers")
    if not words:
        raise CommandError("ERR Please specify at least one argument for this redis.call")
    return tuple(words)
