"""The fake server answers like a real one: both run the same random commands and scripts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from tests.servers import StoreServer, running_server

from onewriter_testing.fake_store.commands import CommandError
from onewriter_testing.fake_store.server import FakeNode, FakeServer

SEEDS = 60
COMMANDS = 60
KEYS = ("{k}hash", "{k}stream", "{k}other", "{k}text")
NAMES = ("a", "b", "\u00e9", "n")
VALUES = (b"", b"1", b"-7", b"2.5", b"x\x00\xff\r\n", b"long" * 50)
IDS = ("0-1", "1-1", "1-2", "2-0", "2-5", "3", "7-1", "0-0", "x", "-1")

Words = list[str | bytes | int]

ONE_BY_ONE = b"""
local replies, at = {}, 1
while at <= #ARGV do
  local count = tonumber(ARGV[at])
  local reply = redis.pcall(unpack(ARGV, at + 1, at + count))
  if type(reply) == 'table' and reply.err then reply = 'error ' .. string.match(reply.err, '^%S+') end
  if type(reply) == 'table' and reply.ok then reply = 'status ' .. reply.ok end
  if reply == false then reply = 'null' end
  replies[#replies + 1] = reply
  at = at + count + 1
end
return replies
"""
"""Runs commands, and continues after those that fail."""

UNTIL_THE_FIRST_ERROR = ONE_BY_ONE.replace(b"redis.pcall", b"redis.call")

CONVERSIONS = (
    b"return 3.99",
    b"return -3.99",
    b"return true",
    b"return false",
    b"return nil",
    b"return 'text\\0\\255'",
    b"return {1, 2.7, 'x', {true, false}, nil, 4}",
    b"return {ok = 'FINE'}",
    b"return {err = 'MINE it failed'}",
    b"return redis.error_reply('MINE too')",
    b"return redis.status_reply('FINE')",
    b"return {}",
    b"return redis.call('HGET', KEYS[1], 'nothing') == false",
    b"return #ARGV[1]",
    b"return string.format('%d', tonumber(ARGV[2]) + 1)",
    b"return math.huge > 1 and 'inf'",
    b"error('plain')",
    b"error({err = 'MINE thrown'})",
    b"redis.call('HSET', KEYS[1], 'written', '1'); error('after a write')",
    b"redis.call('HSET', KEYS[1], 'twice', '1'); redis.call('XADD', KEYS[1], '1-1', 'a', 'b')",
    b"global = 1",
    b"return redis.call('NOSUCHCOMMAND')",
    b"return redis.pcall('HGET', KEYS[1]).err ~= nil",
    b"return type(redis.call('HGETALL', KEYS[1]))",
    b"return {redis.call('HSET', KEYS[1], 'int', 12), redis.call('HGET', KEYS[1], 'int')}",
)


@pytest.fixture(scope="module")
def server() -> Iterator[StoreServer]:
    with running_server(appendfsync="no") as running:
        yield running


@pytest.fixture
def real(server: StoreServer) -> Iterator[Callable[..., Any]]:
    """Execute a command on a real server; return its reply as in the protocol, or the code of its error."""
    client = redis.Redis(unix_socket_path=str(server.path), protocol=2)
    client.response_callbacks.clear()
    client.flushall()

    def execute(*words: str | bytes | int) -> Any:
        try:
            return client.execute_command(*words)  # type: ignore[no-untyped-call]
        except redis.ResponseError as error:
            return ("error", code_of(type(error).__name__, str(error)))

    yield execute
    client.close()


def code_of(kind: str, text: str) -> str:
    """Return the part of an error that a caller can rely on. (redis-py removes the code ERR.)"""
    if "equal or smaller" in text:
        return "equal or smaller"
    word = text.partition(" ")[0]
    return (
        word if word.isupper() and word not in {"ERR", "The"} and kind != "NoScriptError" else "ERR"
    )


def fake(node: FakeNode, *words: str | bytes | int) -> Any:
    try:
        return plain(node.run(*words))
    except CommandError as error:
        return ("error", code_of("", str(error)))


def fake_script(node: FakeNode, source: bytes, keys: list[bytes], arguments: list[bytes]) -> Any:
    call = node.call()
    try:
        digest = node.scripts.load(source)
        return plain(node.scripts.evaluate(digest, keys, arguments, call))
    except CommandError as error:
        return ("error", code_of("", str(error)))
    finally:
        node.commit(call)


def plain(reply: Any) -> Any:
    if isinstance(reply, list):
        return [plain(each) for each in reply]
    return bytes(reply) if isinstance(reply, bytes) else reply


def random_command(dice: random.Random) -> Words:
    key, name, value = dice.choice(KEYS), dice.choice(NAMES), dice.choice(VALUES)
    low, high = dice.choice(("-", "(1-1", *IDS)), dice.choice(("+", "(7-1", *IDS))
    count: Words = ["COUNT", dice.randint(1, 3)] if dice.random() < 0.4 else []
    choices: tuple[Words, ...] = (
        ["HSET", key, name, value],
        ["HSET", key, name, value, "n", dice.randint(0, 99)],
        ["HSET", key, name],
        ["HGET", key, name],
        ["HMGET", key, *NAMES],
        ["HDEL", key, name, dice.choice(NAMES)],
        ["HGETALL", key],
        ["EXISTS", key],
        ["DEL", key],
        ["SET", "{k}text", value],
        ["XADD", key, dice.choice(IDS), name, value],
        ["XADD", key, "NOMKSTREAM", dice.choice(IDS), name, value, "p", b"q"],
        ["XADD", key, dice.choice(IDS), name],
        ["XRANGE", key, low, high, *count],
        ["XREVRANGE", key, high, low, *count],
        ["XDEL", key, dice.choice(IDS), dice.choice(IDS)],
        ["XTRIM", key, "MINID", "=", dice.choice(IDS)],
        ["NOSUCHCOMMAND", key],
    )
    return dice.choice(choices)


def keys_of(execute: Callable[..., Any]) -> dict[str, Any]:
    """Return all that is stored under the keys."""
    found: dict[str, Any] = {}
    for key in KEYS:
        fields = execute("HGETALL", key)
        if isinstance(fields, list):
            fields = sorted(zip(fields[::2], fields[1::2], strict=True))
        found[key] = (fields, execute("XRANGE", key, "-", "+"))
    return found


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_commands_have_the_same_replies_and_effects(
    real: Callable[..., Any], seed: int
) -> None:
    dice, node = random.Random(seed), FakeServer().primary
    for _ in range(COMMANDS):
        words = random_command(dice)
        expected, found = real(*words), fake(node, *words)
        if words[0] == "HGETALL" and isinstance(expected, list):
            expected, found = sorted(expected), sorted(found)
        assert found == expected, words
    assert keys_of(lambda *words: fake(node, *words)) == keys_of(real)


@pytest.mark.parametrize("source", [ONE_BY_ONE, UNTIL_THE_FIRST_ERROR], ids=["pcall", "call"])
@pytest.mark.parametrize("seed", range(SEEDS // 2))
def test_scripts_of_random_commands_have_the_same_replies_and_effects(
    real: Callable[..., Any], seed: int, source: bytes
) -> None:
    dice, node = random.Random(1000 + seed), FakeServer().primary
    keys = [key.encode() for key in KEYS]
    for _ in range(5):
        arguments: list[bytes] = []
        for _ in range(8):
            words = random_command(dice)
            if words[0] == "HGETALL":
                continue  # the server may choose any order
            arguments.append(b"%d" % len(words))
            arguments += [each if isinstance(each, bytes) else str(each).encode() for each in words]
        expected = real("EVAL", source, len(keys), *keys, *arguments)
        assert fake_script(node, source, keys, arguments) == expected, arguments
    assert keys_of(lambda *words: fake(node, *words)) == keys_of(real)


@pytest.mark.parametrize("source", CONVERSIONS, ids=bytes.decode)
def test_values_are_converted_as_a_server_converts_them(
    real: Callable[..., Any], source: bytes
) -> None:
    node = FakeServer().primary
    keys, arguments = [b"{k}hash"], [b"\x00\xff", b"41"]
    expected = real("EVAL", source, 1, *keys, *arguments)
    assert fake_script(node, source, keys, arguments) == expected
    assert keys_of(lambda *words: fake(node, *words)) == keys_of(real)


def test_a_script_that_uses_an_undeclared_key_fails() -> None:
    node = FakeServer().primary
    found = fake_script(node, b"return redis.call('HGET', 'other', 'a')", [b"declared"], [])
    assert found == ("error", "ERR")


def test_an_unknown_script_is_an_error() -> None:
    node = FakeServer().primary
    with pytest.raises(CommandError, match="NOSCRIPT"):
        node.scripts.evaluate(b"0" * 40, [], [], node.call())


def test_replicas_and_restarts_contain_only_whole_scripts() -> None:
    server = FakeServer()
    replica = server.add_replica("replica")
    replica.holds_replication = True
    for number in range(3):
        fake_script(
            server.primary,
            b"redis.call('HSET', KEYS[1], 'first', ARGV[1]); redis.call('HSET', KEYS[1], 'second', ARGV[1])",
            [b"pair"],
            [b"%d" % number],
        )
    assert len(server.primary.history) == 3
    replica.follow(1)
    assert replica.keyspace.hash(b"pair") == {b"first": b"0", b"second": b"0"}
    server.restart(server.primary, keep=2)
    assert server.primary.keyspace.hash(b"pair") == {b"first": b"1", b"second": b"1"}
    assert server.primary.replid != replica.replid


def test_a_replica_refuses_writes() -> None:
    server = FakeServer()
    replica = server.add_replica("replica")
    assert fake(replica, "HSET", "key", "a", "b") == ("error", "READONLY")
