"""``onewriter verify`` on a real Valkey: its report about a good log, and about one that was tampered with.

Tampering needs an unrestricted connection; a broker's user has no right to do it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.servers import StoreServer
from tests.unit.broker.verify.histories import (
    BUCKETS,
    TOPIC,
    TopicHistory,
    a_long_history,
    entry,
    no_subscription,
)

from onewriter_broker.local.embedded import EmbeddedServer, EmbeddedSettings
from onewriter_broker.log.store.keys import Keys
from onewriter_broker.log.store.redis.primary import RedisSettings
from onewriter_broker.log.store.redis.store import RedisLogStore
from onewriter_broker.settings import Settings
from onewriter_broker.topic.retention.retention import Retention
from onewriter_broker.verify.cli import verify_command
from onewriter_core.api.topic import Retention as Policy
from onewriter_core.errors import ConfigurationError, Refused, Undecided
from onewriter_core.log_format.field_names import TRIMMED
from onewriter_core.topic.model import Purpose

KEYS = Keys(BUCKETS)
LOG, STATE = KEYS.log(TOPIC), KEYS.state(TOPIC)
AUDIT = KEYS.audit(KEYS.bucket(TOPIC))


def live(url: str, life: Callable[[RedisLogStore], object] = a_long_history) -> None:
    """Write a history to the server at ``url``, and close the store afterwards."""

    async def run() -> None:
        store = RedisLogStore(RedisSettings(url=url, buckets=BUCKETS))
        try:
            await life(store)  # type: ignore[misc]  # every life is a coroutine
        finally:
            await store.close()

    asyncio.run(run())


def verify(*words: str) -> Result:
    return CliRunner().invoke(verify_command, ["--buckets", str(BUCKETS), *words])


def violated(result: Result) -> set[str]:
    """Return the predicates in a JSON report."""
    report = json.loads(result.stdout)
    return {violation["predicate"] for log in report["logs"] for violation in log["violations"]}


def test_verify_reports_a_valid_log_as_text_and_as_json(valkey: StoreServer) -> None:
    live(valkey.url)
    for people in (
        verify("orders", "--redis-url", valkey.url),
        verify("--all", "--redis-url", valkey.url),
    ):
        assert people.exit_code == 0, people.output
        assert "persistent://public/default/orders" in people.stdout
        assert "holds" in people.stdout
    programs = json.loads(verify("orders", "--redis-url", valkey.url, "-o", "json").stdout)
    (log,) = programs["logs"]
    assert programs["holds"]
    assert (log["first"], log["last"], log["ledgers"], log["entries"]) == ("5-0", "10-5", 6, 21)
    assert (log["violations"], log["notes"]) == ([], [])


def drop_a_block(server: StoreServer) -> None:
    assert server.command("XDEL", LOG, "5-3") == 1


def drop_a_marker(server: StoreServer) -> None:
    assert server.command("XDEL", LOG, "7-0") == 1


def drop_an_audit_record(server: StoreServer) -> None:
    records = dict(server.command("XRANGE", AUDIT, "-", "+"))
    (record_id,) = [name for name, fields in records.items() if fields[b"kind"] == b"share"]
    assert server.command("XDEL", AUDIT, record_id) == 1


def write_a_block_again(server: StoreServer) -> None:
    ((_, fields),) = server.command("XRANGE", LOG, "10-5", "10-5")
    server.command("XADD", LOG, "10-6", *(word for pair in fields.items() for word in pair))


def forget_the_epoch(server: StoreServer) -> None:
    server.command("HSET", STATE, "epoch", "3")


def put_a_foreign_entry_in(server: StoreServer) -> None:
    server.command("XADD", LOG, "10-6", "hello", "world")


@pytest.mark.parametrize(
    ("tamper", "predicates"),
    [
        (drop_a_block, {"S5"}),
        (drop_a_marker, {"S4"}),
        (drop_an_audit_record, {"S4"}),
        (write_a_block_again, {"S6", "S7"}),  # twice in the log, and not under its own hash
        (forget_the_epoch, {"S12"}),
        (put_a_foreign_entry_in, {"S7"}),
    ],
)
def test_tampering_is_found_and_named(
    valkey: StoreServer, tamper: Callable[[StoreServer], None], predicates: set[str]
) -> None:
    live(valkey.url)
    tamper(valkey)
    result = verify("orders", "--redis-url", valkey.url, "-o", "json")
    assert result.exit_code == 1
    assert violated(result) == predicates
    people = verify("orders", "--redis-url", valkey.url)
    assert people.exit_code == 1
    assert all(f"  {predicate}  " in people.stdout for predicate in predicates)


def test_retention_trims_a_real_log_and_the_rest_holds(valkey: StoreServer) -> None:
    async def life(store: RedisLogStore) -> None:
        history = await a_long_history(store)
        for ledger in range(20):
            for number in range(30):
                await history.publish(entry("carol", 100 + 30 * ledger + number))
            await history.fence(Purpose.ROLL)
        retention, bound = Retention(), Policy(max_entries=50)
        assert await retention.sweep(history.log, bound, no_subscription, history.clock_ms) > 300

    live(valkey.url, life)
    assert 50 <= valkey.command("XLEN", LOG) < 300  # whole nodes of the stream are trimmed
    result = verify("orders", "--redis-url", valkey.url)
    assert result.exit_code == 0, result.output
    assert "note: what was trimmed, up to" in result.stdout


def test_a_missing_front_that_no_trim_explains_is_found(valkey: StoreServer) -> None:
    async def life(store: RedisLogStore) -> None:
        history: TopicHistory = await a_long_history(store)
        await Retention().sweep(
            history.log, Policy(max_entries=10), no_subscription, history.clock_ms
        )
        assert history.log.state[TRIMMED] == "7-2"

    live(valkey.url, life)
    assert verify("orders", "--redis-url", valkey.url).exit_code == 0
    valkey.command("XTRIM", LOG, "MINID", "9-0")
    result = verify("orders", "--redis-url", valkey.url, "-o", "json")
    assert violated(result) == {"S5"}


def test_a_topic_that_is_not_there_and_a_store_that_is_not_there(valkey: StoreServer) -> None:
    assert isinstance(verify("nothing", "--redis-url", valkey.url).exception, Refused)
    assert verify("--redis-url", valkey.url).exit_code == 2
    assert verify("orders", "--all").exit_code == 2
    assert isinstance(verify("a/b", "--redis-url", valkey.url).exception, ConfigurationError)
    valkey.kill()
    assert isinstance(verify("orders", "--redis-url", valkey.url).exception, Undecided)


def test_the_data_directory_is_enough_even_when_nothing_runs(tmp_path: Path) -> None:
    assert isinstance(verify("orders", "--data-dir", str(tmp_path)).exception, ConfigurationError)
    url = asyncio.run(_written_by_up(tmp_path))
    (tmp_path / "run").mkdir()
    reported = {"data_dir": tmp_path, "redis_url": url, "buckets": BUCKETS}
    settings = Settings.model_validate(reported)
    (tmp_path / "run" / "broker-0.json").write_text(settings.model_dump_json())
    result = CliRunner().invoke(verify_command, ["orders", "--data-dir", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "starting it" in result.stderr
    assert not (tmp_path / "valkey" / "valkey.sock").exists()  # and stopped again


async def _written_by_up(data_dir: Path) -> str:
    server = EmbeddedServer(EmbeddedSettings(data_dir / "valkey"))
    await server.start()
    try:
        store = RedisLogStore(RedisSettings(url=server.url, buckets=BUCKETS))
        await a_long_history(store)
        await store.close()
    finally:
        await server.stop()
    return server.url
