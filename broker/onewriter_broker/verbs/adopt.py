"""``onewriter adopt``: accept a dataset that the brokers refuse, although data is missing in it."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import asdict
from pathlib import Path

import click

from onewriter_broker.local.cluster import stored_cluster
from onewriter_broker.local.datadir import DirectoryLock
from onewriter_broker.local.embedded import EmbeddedServer, EmbeddedSettings, EmbeddedStore
from onewriter_broker.log.store.redis.store import RedisLogStore
from onewriter_broker.logs import configure_logging
from onewriter_broker.ownership.acquisition import (
    Forced,
    adopt_force,
    adopt_restored,
    is_served,
)
from onewriter_broker.ownership.buckets import ACQUISITIONS_MAX
from onewriter_broker.process import api_of, is_single_node, open_anchor, redis_settings
from onewriter_broker.settings import Settings
from onewriter_broker.store_option import without_password
from onewriter_core import tables
from onewriter_core.command import output_option
from onewriter_core.errors import ConfigurationError

REASON_LENGTH_MAX = 500

EXPLANATION = """\
A broker refuses a bucket when the store lacks data that the anchor requires: data was lost,
or this is another dataset. `onewriter status` shows the reason as "not served".

adopt makes the PRESENT data of the store valid for such a bucket. Missing messages stay missing,
every producer of its topics must be created again, and no earlier epoch ever returns. It does
nothing to a bucket that brokers can take as it is. Stop the brokers first if you can.

To do it:  onewriter adopt --all --force --reason "why"     (or --bucket N)

Before you restore data from an older copy:  onewriter adopt --all --restored
Run it while the data's store is down. Brokers then report for every topic, whatever its
durability, what the copy may lack. Without it no broker can know that the copy is older."""


@click.command()
@click.option("--bucket", "bucket", type=click.IntRange(min=0), help="Only this bucket.")
@click.option("--all", "every", is_flag=True, help="All buckets that brokers refuse.")
@click.option(
    "--force",
    is_flag=True,
    help="Adopt the data; without this option the command only explains what it would do.",
)
@click.option(
    "--restored",
    is_flag=True,
    help="The data of buckets whose store is down is about to be restored from an older copy: note that, so that"
    " brokers state what may be missing.",
)
@click.option("--reason", default="", help="The reason; written to the audit stream.")
@click.option(
    "--data-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of the anchor and the embedded server's data.",
)
@click.option(
    "--redis-url", callback=without_password, help="URL of the store; default: the embedded one."
)
@click.option(
    "--redis-sentinels",
    help="host:port,... of Sentinels that know the primary; rediss://host:port,... for TLS.",
)
@click.option("--redis-sentinel-master", help="Name of the primary at the Sentinels.")
@output_option("table", "json")
@click.pass_context
def adopt(
    context: click.Context,
    /,
    bucket: int | None,
    *,
    every: bool,
    force: bool,
    restored: bool,
    reason: str,
    output: str,
    **options: object,
) -> None:
    """Accept the store's present data for buckets that the brokers refuse to serve.

    What the store has lost stays lost. Without --force or --restored the command only explains what it would do.
    Exit code 1: a bucket was not adopted.
    """
    configure_logging()
    if not force and not restored:
        click.echo(EXPLANATION)
        context.exit(2)
    if force and restored:
        raise ConfigurationError("give either --force or --restored")
    if (bucket is None) == (not every):
        raise ConfigurationError("give either --bucket N or --all")
    if force and (not reason.strip() or len(reason) > REASON_LENGTH_MAX):
        raise ConfigurationError(f"--reason is needed, with at most {REASON_LENGTH_MAX} characters")
    given = {name: value for name, value in options.items() if value is not None}
    settings = Settings.read(**given)
    if bucket is not None and bucket >= settings.buckets:
        raise ConfigurationError(f"--bucket: there are {settings.buckets} buckets, from 0")
    anchor_directory = settings.data_dir / "anchor"
    if settings.anchor == "file" and not anchor_directory.is_dir():
        raise ConfigurationError(f"--data-dir: {anchor_directory} is not an anchor directory")
    buckets = range(settings.buckets) if bucket is None else [bucket]
    adopted = (
        _adopt_restored(settings, list(buckets))
        if restored
        else _adopt(settings, list(buckets), reason.strip())
    )
    results = asyncio.run(adopted)
    forced = [result for result in results if not result.problem]
    if output == "json":
        tables.as_json({"buckets": [_row(result) for result in results]})
    else:
        for result in results:
            if every and result.is_unnecessary:
                continue
            done = "noted" if restored else f"adopted, registration {result.generation}"
            click.echo(f"bucket {result.bucket}: {result.problem or done}")
        what = "noted as about to be restored" if restored else "adopted"
        click.echo(f"{len(forced)} of {len(results)} buckets {what}")
    failed = [result for result in results if result.problem and not result.is_unnecessary]
    context.exit(1 if failed or (bucket is not None and not forced) else 0)


def _row(result: Forced) -> dict[str, object]:
    """The fields of a result that ``--output json`` shows."""
    row = asdict(result)
    del row["is_unnecessary"]
    return row


async def _adopt(settings: Settings, buckets: list[int], reason: str) -> list[Forced]:
    operator = f"adopt:{_user()}:{uuid.uuid4().hex[:8]}"
    async with reachable(settings) as found:
        anchor = open_anchor(found, api_of(found, os.environ))
        store = RedisLogStore(redis_settings(found))
        try:
            return await _for_each(
                buckets,
                lambda bucket: adopt_force(
                    bucket,
                    anchor=anchor,
                    store=store,
                    operator=operator,
                    reason=reason,
                    time_ms=time.time_ns() // 1_000_000,
                    single_node=is_single_node(found),
                ),
            )
        finally:
            await store.close()
            await anchor.close()


async def _adopt_restored(settings: Settings, buckets: list[int]) -> list[Forced]:
    """Note that the data of buckets is about to be restored. Starts no store. Raises ConfigurationError."""
    anchor = open_anchor(settings, api_of(settings, os.environ))
    try:
        served = await _served(settings, buckets)
        down = [bucket for bucket in buckets if bucket not in served]
        noted = await _for_each(down, lambda bucket: adopt_restored(bucket, anchor=anchor))
        nothing = "its store runs: there is nothing to restore"
        running = [Forced(bucket, 0, "", nothing, is_unnecessary=True) for bucket in served]
        return sorted([*noted, *running], key=lambda result: result.bucket)
    finally:
        await anchor.close()


async def _for_each(
    buckets: Iterable[int], adopted: Callable[[int], Awaitable[Forced]]
) -> list[Forced]:
    """Adopt the buckets, ACQUISITIONS_MAX at a time, so that they share writes to the anchor; the results in their order.

    Brokers that take the adopted buckets meanwhile then rarely change the anchor's object before this process does.
    Raises the error of the first bucket that failed, after all have ended.
    """
    limit = asyncio.Semaphore(ACQUISITIONS_MAX)

    async def one(bucket: int) -> Forced:
        async with limit:
            return await adopted(bucket)

    results = await asyncio.gather(*(one(bucket) for bucket in buckets), return_exceptions=True)
    done = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done


async def _served(settings: Settings, buckets: list[int]) -> set[int]:
    """The buckets whose store answers. Raises ConfigurationError while a broker runs with an embedded store."""
    if not settings.redis_url and not settings.redis_sentinels:
        lock = DirectoryLock(settings.data_dir, what="onewriter")
        lock.acquire()
        lock.release()
        return set()
    store = RedisLogStore(redis_settings(settings))
    try:
        answers = await asyncio.gather(*(is_served(store, bucket) for bucket in buckets))
        return {bucket for bucket, is_up in zip(buckets, answers, strict=True) if is_up}
    finally:
        await store.close()


def _user() -> str:
    """The name of the user, or the number: containers may run as users without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


@contextlib.asynccontextmanager
async def reachable(settings: Settings) -> AsyncIterator[Settings]:
    """Settings of a store that answers: the named one, the running embedded one, or one that is started here.

    A server that is started here holds the data directory's lock, and is stopped at the end. Raises
    ConfigurationError if there is no data, or no way to its store.
    """
    if settings.redis_url or settings.redis_sentinels:
        yield settings
        return
    lock = DirectoryLock(settings.data_dir, what="onewriter")
    running = _acquire_or_find(lock, settings)
    if running is not None:
        yield running
        return
    try:
        directory = settings.data_dir / "valkey"
        cluster = stored_cluster(settings.data_dir)
        if cluster is None and not directory.is_dir():
            raise ConfigurationError(
                f"{settings.data_dir} has no embedded store: name its store with --redis-url"
            )
        server: EmbeddedStore = cluster or EmbeddedServer(EmbeddedSettings(directory))
        await server.start()
        try:
            changes = {"redis_url": server.url, "redis_is_alone": cluster is None}
            yield settings.model_copy(update=changes)
        finally:
            await server.stop()
    finally:
        lock.release()


def _acquire_or_find(lock: DirectoryLock, settings: Settings) -> Settings | None:
    """None if this process has the lock now; otherwise the settings of a broker that runs on the directory."""
    try:
        lock.acquire()
    except ConfigurationError:
        for path in sorted((settings.data_dir / "run").glob("*.json")):
            # The file may be half written, or not readable by this user.
            with contextlib.suppress(OSError, ValueError):
                return Settings.model_validate_json(path.read_text())
        raise
    return None
