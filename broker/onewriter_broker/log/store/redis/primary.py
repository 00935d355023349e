"""Finds the primary and opens a connection to it: settings, Sentinel, the handshake.

This module does not decide who may write. It checks role and dataset on every connect, because a
name or a Service may lead to another server than the primary; the scripts check the dataset again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import hiredis
from redis.asyncio.connection import parse_url

from onewriter_broker.log.store.keys import BUCKETS_DEFAULT
from onewriter_broker.log.store.redis.connection import RedisConnection, Reply
from onewriter_broker.log.store.redis.script_calls import ALL_SCRIPTS, Word
from onewriter_broker.log.store.redis.store_tls import StoreTls
from onewriter_core.errors import ConfigurationError, Undecided

PASSWORD_BYTES_MAX = 4096
"""Largest size of a password file."""

PORT_MAX = 65_535

_TLS_SCHEME = "rediss://"
_PLAIN_SCHEME = "redis://"


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """A primary named by ``url``, or found through ``sentinels``, or a cluster.

    ``url``: ``redis://[user:password@]host:port``, ``rediss://`` for TLS, or ``unix:///path``; with Sentinel
    it is ignored. ``redis+cluster://[user:password@]host:port,host:port,...`` and ``rediss+cluster://`` name
    some nodes of a cluster, which name the others (topology.py).
    ``tls``: how to connect to a ``rediss://`` URL, and to ``rediss://`` Sentinels and their primary.
    ``sentinels``: ``host:port`` each, or ``rediss://host:port`` for TLS to all Sentinels and to the primary;
    ``sentinel_primary``: the primary's name in Sentinel.
    ``username``, ``password``: used if the URL names none. ``password_file`` contains the password
    instead; it is read for each connection, so a rotated password applies from the next connection on.
    ``buckets``: number of hash buckets of the store; it never changes.
    ``replicas``: replicas that AllReplicas waits for; 0: the profile is not offered.
    ``call_timeout_seconds``: one guarded write or read; after it the connection is dropped.
    ``commit_timeout_seconds``: one wait for replicas or the disk; after it commit says "not yet".
    ``audit_records_max``: approximate number of audit records kept per bucket.
    """

    url: str = ""
    sentinels: tuple[str, ...] = ()
    sentinel_primary: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    password_file: Path | None = None
    tls: StoreTls = field(default_factory=StoreTls)
    buckets: int = BUCKETS_DEFAULT
    replicas: int = 0
    connect_timeout_seconds: float = 2.0
    call_timeout_seconds: float = 5.0
    commit_timeout_seconds: float = 1.0
    audit_records_max: int = 10_000

    @property
    def is_cluster(self) -> bool:
        """Whether the store is a cluster of several primaries."""
        return is_cluster_url(self.url) and not self.sentinels


CLUSTER_SCHEMES = ("redis+cluster://", "rediss+cluster://")

SEEDS_MAX = 64
"""Addresses in the URL of a cluster at most."""


def is_cluster_url(url: str) -> bool:
    """Whether a store's URL names nodes of a cluster."""
    return url.startswith(CLUSTER_SCHEMES)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address to connect to: a socket ``path``, or ``host`` and ``port``; with ``tls``, unless it is None."""

    host: str = ""
    port: int = 0
    path: str = ""
    username: str = ""
    password: str = field(
        default="", repr=False, compare=False
    )  # not part of the server's identity
    tls: StoreTls | None = None

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Primary:
    """An open connection to a server that reports to be primary, and that server's identity.

    ``syncs_always``: its append-only file is synced before every reply.
    """

    connection: RedisConnection
    endpoint: Endpoint
    run_id: str
    client_id: int
    syncs_always: bool


def endpoint_of(settings: RedisSettings) -> Endpoint:
    """The endpoint of the URL. Raises ConfigurationError for an unusable URL, Undecided."""
    if not settings.url.startswith(("redis://", "rediss://", "unix://")):
        raise ConfigurationError(
            f"store URL {_without_password(settings.url)!r}: "
            "write redis://host:port, rediss://host:port, unix:///path"
            " or redis+cluster://host:port,host:port"
        )
    is_encrypted = settings.url.startswith(_TLS_SCHEME)
    if not is_encrypted:
        _refuse_tls(settings, f"{_without_password(settings.url)!r} is not encrypted")
    try:
        parts: Mapping[str, object] = dict(parse_url(settings.url))
    except ValueError as error:
        shown = _without_password(settings.url)
        raise ConfigurationError(f"store URL {shown!r}: {error}") from error
    if parts.get("db", 0) != 0:
        raise ConfigurationError("store URL: only database 0 can be used")
    return Endpoint(
        host=str(parts.get("host", "" if "path" in parts else "127.0.0.1")),
        port=int(str(parts.get("port", 0 if "path" in parts else 6379))),
        path=str(parts.get("path", "")),
        username=str(parts.get("username", settings.username)),
        password=str(parts["password"]) if "password" in parts else _password(settings),
        tls=settings.tls if is_encrypted else None,
    )


def seeds_of(settings: RedisSettings) -> tuple[Endpoint, ...]:
    """The nodes that the URL of a cluster names. Raises ConfigurationError for an unusable URL, Undecided."""
    scheme, _, rest = settings.url.partition("+cluster://")
    place, slash, path = rest.partition("/")
    user, at, hosts = place.rpartition("@")
    names = hosts.split(",")
    if slash and path not in {"", "0"}:
        raise ConfigurationError("store URL: a cluster has only database 0")
    if not all(names) or len(names) > SEEDS_MAX:
        raise ConfigurationError(
            f"store URL {_without_password(settings.url)!r}: write redis+cluster://host:port,host:port"
            f" with 1 to {SEEDS_MAX} addresses of nodes"
        )
    return tuple(
        endpoint_of(replace(settings, url=f"{scheme}://{user}{at}{name}")) for name in names
    )


def _refuse_tls(settings: RedisSettings, because: str) -> None:
    """Raise ConfigurationError if TLS is configured for a connection that would not use it."""
    if not settings.tls.is_empty:
        raise ConfigurationError(
            "redis_ca_file, redis_cert_file, redis_key_file and redis_server_name need a rediss:// URL, or"
            f" rediss:// Sentinels: {because}"
        )


def _password(settings: RedisSettings) -> str:
    """The configured password. Raises Undecided with the file's name, because the file may appear soon."""
    if settings.password_file is None:
        return settings.password
    try:
        with settings.password_file.open("rb") as stream:
            return stream.read(PASSWORD_BYTES_MAX).decode().strip("\r\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise Undecided(f"{settings.password_file}: {reason}") from None


async def find_primary(settings: RedisSettings) -> Endpoint:
    """The address from the first Sentinel that answers, or the address of the URL.

    Raises Undecided if no Sentinel knows the primary. The address may be outdated; the handshake and
    the guards detect that.
    """
    if not settings.sentinels:
        return endpoint_of(settings)
    failures = []
    for sentinel in sentinel_endpoints(settings):
        try:
            found = await _primary_named_by(sentinel, settings)
        except Undecided as error:
            failures.append(f"{sentinel}: {error}")
            continue
        if found is not None:
            return found
        failures.append(f"{sentinel}: knows no {settings.sentinel_primary!r}")
    raise Undecided(f"no Sentinel names the primary: {'; '.join(failures)}")


def sentinel_endpoints(settings: RedisSettings) -> list[Endpoint]:
    """The addresses of the Sentinels. All use TLS, or none does: otherwise the primary could be reached with and
    without it. Raises ConfigurationError.
    """
    found = []
    encrypted = {sentinel.startswith(_TLS_SCHEME) for sentinel in settings.sentinels}
    if len(encrypted) > 1:
        raise ConfigurationError("redis_sentinels: write rediss:// at all Sentinels or at none")
    is_encrypted = encrypted == {True}
    if not is_encrypted:
        _refuse_tls(settings, "redis_sentinels are not encrypted")
    for sentinel in settings.sentinels:
        address = sentinel.removeprefix(_TLS_SCHEME).removeprefix(_PLAIN_SCHEME)
        host, separator, port = address.rpartition(":")
        is_number = port.isascii() and port.isdigit() and 0 < int(port[:6]) <= PORT_MAX
        if not separator or not host or "/" in host or "@" in host or not is_number:
            shown = _without_password(sentinel)
            raise ConfigurationError(
                f"Sentinel {shown!r}: write host:port, or rediss://host:port for TLS"
            )
        host = host.removeprefix("[").removesuffix("]")
        tls = settings.tls if is_encrypted else None
        found.append(Endpoint(host=host, port=int(port), tls=tls))
    return found


async def _primary_named_by(sentinel: Endpoint, settings: RedisSettings) -> Endpoint | None:
    """The primary that this Sentinel names; None if it knows none. Raises Undecided."""
    async with connected(sentinel, settings.connect_timeout_seconds) as connection:
        words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", settings.sentinel_primary]
        reply = await ask(connection, words)
    if not isinstance(reply, list):
        return None
    return Endpoint(
        host=reply[0].decode(),
        port=int(reply[1]),
        username=settings.username,
        password=_password(settings),
        tls=sentinel.tls,
    )


async def connect(endpoint: Endpoint) -> RedisConnection:
    """Open a connection that has not logged in yet. Raises OSError, Undecided."""
    loop = asyncio.get_running_loop()
    if endpoint.path:
        return (await loop.create_unix_connection(RedisConnection, endpoint.path))[1]
    options = {} if endpoint.tls is None else await endpoint.tls.options(endpoint.host)
    made = await loop.create_connection(
        RedisConnection, endpoint.host or "localhost", endpoint.port, **options
    )
    return made[1]


@asynccontextmanager
async def connected(endpoint: Endpoint, timeout_seconds: float) -> AsyncIterator[RedisConnection]:
    """An authenticated connection for a few requests. Raises Undecided."""
    try:
        async with asyncio.timeout(timeout_seconds):
            connection = await connect(endpoint)
            try:
                await log_in(connection, endpoint)
                yield connection
            finally:
                connection.close()
                await connection.wait_closed()
    except (OSError, TimeoutError) as error:
        raise unreachable(endpoint, error) from error


def unreachable(endpoint: Endpoint, error: OSError) -> Undecided:
    """The error of a connection that could not be opened, or was lost before it could be used."""
    if endpoint.tls is None:
        reason = error.strerror or str(error) or type(error).__name__
        if isinstance(error, TimeoutError) and not str(error):
            reason = "it did not answer in time"
        return Undecided(f"no connection to the store at {endpoint}: {reason}")
    reason = endpoint.tls.explain(error, endpoint.host)
    return Undecided(f"no TLS connection to the store at {endpoint}: {reason}")


Open = Callable[[RedisSettings, Primary | None], Awaitable[Primary]]
"""``open_primary``, or its replacement in a test."""

OpenAt = Callable[[Endpoint, RedisSettings, Primary | None], Awaitable[Primary]]
"""``open_at``, or its replacement in a test."""


async def open_primary(settings: RedisSettings, replaces: Primary | None = None) -> Primary:
    """Connect to the primary, load the scripts, and check the server's guarantees.

    ``replaces`` is the caller's previous connection: if it led to the same server process, the
    server closes it first, so that none of its commands that are still in a socket can run after a
    later one. Raises Undecided if no primary is available.
    """
    return await open_at(await find_primary(settings), settings, replaces)


async def open_at(
    endpoint: Endpoint, settings: RedisSettings, replaces: Primary | None = None
) -> Primary:
    """The same for the server at ``endpoint``. Raises Undecided if it is not a primary."""
    try:
        async with asyncio.timeout(settings.connect_timeout_seconds):
            connection = await connect(endpoint)
            try:
                return await handshake(connection, endpoint, replaces)
            except BaseException:
                connection.close()
                raise
    except (OSError, TimeoutError) as error:
        raise unreachable(endpoint, error) from error


async def handshake(
    connection: RedisConnection, endpoint: Endpoint, replaces: Primary | None
) -> Primary:
    """Authenticate, load the scripts and check the server's guarantees. Raises Undecided, ConnectionError."""
    await log_in(connection, endpoint)
    server = parse_info(await ask(connection, ["INFO", "server"]))
    replication = parse_info(await ask(connection, ["INFO", "replication"]))
    if replication.get("role") != "master":
        raise Undecided(f"the store at {endpoint} is not a primary: {replication.get('role')!r}")
    if replaces is not None and replaces.run_id == server.get("run_id"):
        await ask(connection, ["CLIENT", "KILL", "ID", replaces.client_id])
    client_id = await ask(connection, ["CLIENT", "ID"])
    for script in ALL_SCRIPTS:
        await ask(connection, ["SCRIPT", "LOAD", script.source])
    # After the scripts, which a server that still loads its data refuses: until it has loaded them
    # it says that it keeps no append-only file, and would be taken to promise nothing for good.
    persistence = parse_info(await ask(connection, ["INFO", "persistence"]))
    has_file = persistence.get("aof_enabled") == "1"
    return Primary(
        connection=connection,
        endpoint=endpoint,
        run_id=server.get("run_id", ""),
        client_id=int(str(client_id)),
        syncs_always=has_file and await _syncs_always(connection),
    )


async def log_in(connection: RedisConnection, endpoint: Endpoint) -> None:
    """Authenticate, if there is a password. Raises Undecided, ConnectionError."""
    if endpoint.password:
        words = [word for word in (endpoint.username, endpoint.password) if word]
        await ask(connection, ["AUTH", *words])


async def _syncs_always(connection: RedisConnection) -> bool:
    reply = await connection.submit(["CONFIG", "GET", "appendfsync"])
    return isinstance(reply, list) and len(reply) == 2 and reply[1] == b"always"


async def ask(connection: RedisConnection, words: Sequence[Word]) -> Reply:
    """The reply to a command. Raises Undecided if the server refuses it, ConnectionError."""
    reply = await connection.submit(words)
    if isinstance(reply, ConnectionError):
        raise reply
    if isinstance(reply, hiredis.ReplyError):
        raise Undecided(f"the store refused {words[0]!r}: {reply}")
    return reply


def parse_info(reply: Reply) -> dict[str, str]:
    """INFO's lines as a mapping."""
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else ""
    lines = (line.partition(":") for line in text.splitlines() if not line.startswith("#"))
    return {name: value for name, separator, value in lines if separator}


def version_of(text: str) -> tuple[int, ...]:
    """``9.1.2`` as numbers, up to the first part that is not a number."""
    numbers = []
    for part in text.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
