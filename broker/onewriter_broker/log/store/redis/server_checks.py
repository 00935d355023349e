"""Checks on start-up which guarantees a server can give.

``check_server`` reads the facts. ``judge``, a pure function, decides which durability the server can
promise, what makes the server unusable, and what needs a warning. Every write checks the dataset
again (scripts/guard.lua), every connect the role (primary.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import hiredis

from onewriter_broker.log.store.redis.connection import RedisConnection, Reply
from onewriter_broker.log.store.redis.primary import (
    Endpoint,
    RedisSettings,
    ask,
    connected,
    find_primary,
    parse_info,
    version_of,
)
from onewriter_broker.log.store.redis.script_calls import Word
from onewriter_broker.log.store.redis.topology import Topology
from onewriter_core.api.topic import Durability
from onewriter_core.errors import Undecided

VALKEY_VERSION_MIN = (8,)
REDIS_VERSION_MIN = (7, 0)

PRIMARIES_MIN = 3
"""Primaries of a cluster of which one can be lost: the others are a majority."""

PROBE_KEY = "ow:probe:unused"
"""A key that never exists, for attempts of commands that the server must deny."""

_GUARD_PROBE = "return string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')"
_REPLID_LENGTH = 40


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The facts about a server that one inspection found.

    ``product`` is ``valkey`` or ``redis``. ``append_sync`` (``always``, ``everysec``, ``no``) and
    ``replicas_min_to_write`` are empty and None if CONFIG is denied. ``guard_replids`` are two
    answers of the guard's self-test, empty if it failed. ``user`` is the configured ACL user.
    ``allowed`` lists dangerous commands that the server did not deny.
    """

    product: str = ""
    version: tuple[int, ...] = ()
    is_primary: bool = False
    replid: str = ""
    replicas: int = 0
    eviction_policy: str = ""
    has_append_only_file: bool = False
    append_sync: str = ""
    replicas_min_to_write: int | None = None
    guard_replids: tuple[str, ...] = ()
    is_in_cluster: bool = False
    user: str = ""
    allowed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Declared:
    """What an administrator declares about a managed server that hides it. It never replaces what the server shows.

    ``durability``: what an answered write of the server survives, if CONFIG is denied. ``noeviction``: the
    server never evicts keys, if it hides its memory policy.
    """

    durability: Durability | None = None
    noeviction: bool = False


NOTHING_DECLARED = Declared()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The assessment of a server's facts.

    ``promises`` are the durabilities that topics may request; ``strongest`` is the highest of them.
    With any ``refusals`` the broker must not start; each is a sentence with the remedy. ``declared``: what was
    not checked, because the server hides it and an administrator declared it.
    """

    promises: frozenset[Durability]
    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = field(default=())
    declared: tuple[str, ...] = ()

    @property
    def strongest(self) -> Durability:
        """The highest durability promised."""
        return max(self.promises, key=list(Durability).index)


def judge(
    facts: ServerFacts,
    minimum: Durability,
    *,
    replicas: int = 0,
    in_cluster: bool = False,
    declared: Declared = NOTHING_DECLARED,
) -> Verdict:
    """Decide which durabilities the server may promise.

    ``minimum`` is the configured minimum durability; ``replicas`` the number of replicas that
    AllReplicas waits for, 0 if that profile is not offered. ``in_cluster``: the settings name a cluster.
    A declaration applies only to what the server hides. The self-test of the identity has no declaration.
    """
    facts, texts, ignored = _with_declared(facts, declared)
    promises = _promises(facts, replicas)
    verdict = Verdict(promises)
    refusals = [*_identity_refusals(facts), *_setting_refusals(facts, minimum)]
    if facts.is_in_cluster and not in_cluster:
        refusals.append(
            "the server is a node of a cluster, and the URL names a single server: write"
            " redis+cluster://host:port,host:port"
        )
    if minimum not in promises:
        refusals.append(
            f"the server can promise at most durability {verdict.strongest.value}, and the "
            f"configuration asks for {minimum.value}: change appendfsync or add replicas"
        )
    warnings = ignored
    if facts.replicas and facts.replicas_min_to_write == 0 and not in_cluster:
        warnings.append(
            "min-replicas-to-write is 0: a primary without connection to its replicas continues to accept writes "
            "that a failover loses; set it to 1"
        )
    return Verdict(promises, tuple(refusals), tuple(warnings), texts)


def _with_declared(
    facts: ServerFacts, declared: Declared
) -> tuple[ServerFacts, tuple[str, ...], list[str]]:
    """The facts with what is declared in place of what is hidden, what was declared, and warnings."""
    texts, warnings = [], []
    if declared.durability is not None:
        if facts.append_sync:
            warnings.append(
                "redis_declared_durability is ignored: the server answers CONFIG, so its settings count"
            )
        elif declared.durability is not Durability.NONE:
            texts.append(f"durability {declared.durability.value}")
            is_local = declared.durability is Durability.LOCAL
            facts = replace(
                facts,
                has_append_only_file=True,
                append_sync="always",
                replicas=0 if is_local else facts.replicas,
            )
    if declared.noeviction:
        if facts.eviction_policy:
            warnings.append(
                "redis_declared_noeviction is ignored: the server shows its maxmemory-policy"
            )
        else:
            texts.append("memory policy noeviction")
            facts = replace(facts, eviction_policy="noeviction")
    return facts, tuple(texts), warnings


def _promises(facts: ServerFacts, replicas: int) -> frozenset[Durability]:
    promises = {Durability.NONE}
    # Without a file a restarted primary is empty, and its replicas copy that.
    if facts.has_append_only_file:
        if facts.append_sync == "always":
            promises.add(Durability.LOCAL)
        if facts.replicas >= 1:
            promises.add(Durability.REPLICATED)
        if facts.replicas >= replicas >= 1:
            promises.add(Durability.ALL_REPLICAS)
    return frozenset(promises)


def _identity_refusals(facts: ServerFacts) -> list[str]:
    refusals = []
    version = ".".join(map(str, facts.version)) or "unknown"
    needed = VALKEY_VERSION_MIN if facts.product == "valkey" else REDIS_VERSION_MIN
    if facts.version < needed:
        refusals.append(
            f"{facts.product} {version} is too old: use Valkey 8 or Redis 7.0, or later"
        )
    if not facts.is_primary:
        refusals.append("the server is a replica: give the primary's address, or Sentinels")
    first, second = [*facts.guard_replids, "", ""][:2]
    if len(first) != _REPLID_LENGTH or first != second or first != facts.replid:
        refusals.append(
            "scripts cannot read a stable master_replid from INFO here, so writes could not be "
            "guarded: use a server that allows it"
        )
    return refusals


def _setting_refusals(facts: ServerFacts, minimum: Durability) -> list[str]:
    refusals = []
    if facts.eviction_policy != "noeviction":
        refusals.append(
            f"maxmemory-policy is {facts.eviction_policy!r}, which deletes logs when memory runs "
            "short: set it to noeviction"
        )
    if not facts.has_append_only_file and minimum is not Durability.NONE:
        refusals.append(
            "the server keeps no append-only file, so a restart forgets every log: set appendonly "
            "yes, or configure durability None"
        )
    if facts.user and facts.allowed:
        refusals.append(
            f"user {facts.user!r} may run {', '.join(facts.allowed)}, which can undo a fence: give "
            "it the rules of onewriter_core.store_rights.broker_acl_rules"
        )
    return refusals


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The facts about the primaries of a cluster, by their addresses, and the number of all its primaries."""

    primaries: int
    answered: Mapping[str, ServerFacts]
    failures: Mapping[str, str]


async def check_cluster(settings: RedisSettings) -> ClusterFacts:
    """Read the facts about every primary of a cluster. Raises Undecided if none is known."""
    topology = Topology(settings)
    try:
        shards = (await topology.refreshed()).shards()
    finally:
        await topology.close()
    endpoints = [topology.endpoint_of(shard.primary.address) for shard in shards]
    found = await asyncio.gather(
        *(check_at(endpoint, settings) for endpoint in endpoints), return_exceptions=True
    )
    return gathered([str(endpoint) for endpoint in endpoints], found)


def gathered(
    primaries: Sequence[str], found: Sequence[ServerFacts | BaseException]
) -> ClusterFacts:
    """The facts about a cluster from the result of each check. Raises an error other than Undecided.

    A primary that has become a replica counts as one without an answer: its cluster is failing over.
    """
    answered: dict[str, ServerFacts] = {}
    failures: dict[str, str] = {}
    for name, facts in zip(primaries, found, strict=True):
        if isinstance(facts, ServerFacts):
            if facts.is_primary:
                answered[name] = facts
            else:
                failures[name] = f"{name} has become a replica"
        elif isinstance(facts, Undecided):
            failures[name] = str(facts)
        else:
            raise facts
    return ClusterFacts(len(primaries), answered, failures)


def judge_cluster(
    found: ClusterFacts,
    minimum: Durability,
    *,
    replicas: int = 0,
    declared: Declared = NOTHING_DECLARED,
) -> Verdict:
    """Decide what a cluster may promise: what each of the primaries that answered may promise."""
    promises = frozenset(Durability)
    refusals: list[str] = []
    warnings: list[str] = []
    texts: dict[str, None] = {}
    if found.primaries < PRIMARIES_MIN:
        warnings.append(
            f"the cluster has {found.primaries} primaries: when one is lost, the others are not a majority and elect"
            f" no replica in its place; use at least {PRIMARIES_MIN}"
        )
    for name, facts in found.answered.items():
        verdict = judge(facts, minimum, replicas=replicas, in_cluster=True, declared=declared)
        promises &= verdict.promises
        refusals += [f"{name}: {text}" for text in verdict.refusals]
        warnings += [f"{name}: {text}" for text in verdict.warnings]
        texts |= dict.fromkeys(verdict.declared)
    for name, reason in found.failures.items():
        warnings.append(f"{name} could not be checked: {reason}")
    return Verdict(promises, tuple(refusals), tuple(warnings), tuple(texts))


async def check_server(settings: RedisSettings) -> ServerFacts:
    """Read the facts about the primary of the settings. Raises Undecided if it does not answer."""
    return await check_at(await find_primary(settings), settings)


async def check_at(endpoint: Endpoint, settings: RedisSettings) -> ServerFacts:
    """Read the facts about one server. Raises Undecided if it does not answer."""
    try:
        async with connected(endpoint, settings.call_timeout_seconds) as connection:
            return await _read_facts(connection, endpoint)
    except Undecided as error:
        raise Undecided(f"the store at {endpoint} cannot be checked: {error}") from error


async def _read_facts(connection: RedisConnection, endpoint: Endpoint) -> ServerFacts:
    server = await _info(connection, "server")
    replication = await _info(connection, "replication")
    memory = await _info(connection, "memory")
    persistence = await _info(connection, "persistence")
    if persistence.get("loading") == "1":  # meanwhile it reports that it has no append-only file
        raise Undecided(f"the store at {endpoint} still loads its data")
    is_valkey = "valkey_version" in server
    version = server.get("valkey_version" if is_valkey else "redis_version", "")
    append_sync = await _try(connection, "CONFIG", "GET", "appendfsync")
    replicas_min = await _try(connection, "CONFIG", "GET", "min-replicas-to-write")
    guard = [await _try(connection, "EVAL", _GUARD_PROBE, 0) for _ in range(2)]
    replid = replication.get("master_replid", "")
    if (await _info(connection, "replication")).get("master_replid", "") != replid:
        # A primary that restarted gets another identity when its first replica connects.
        raise Undecided(f"the store at {endpoint} has just changed its identity")
    user = "" if endpoint.username in {"", "default"} else endpoint.username
    return ServerFacts(
        product="valkey" if is_valkey else "redis",
        version=version_of(version),
        is_primary=replication.get("role") == "master",
        replid=replid,
        replicas=int(replication.get("connected_slaves", "0")),
        eviction_policy=memory.get("maxmemory_policy", ""),
        has_append_only_file=persistence.get("aof_enabled") == "1",
        append_sync=_value(append_sync),
        replicas_min_to_write=int(_value(replicas_min)) if _value(replicas_min) else None,
        is_in_cluster=(await _info(connection, "cluster")).get("cluster_enabled") == "1",
        guard_replids=tuple(reply.decode() for reply in guard if isinstance(reply, bytes)),
        user=user,
        allowed=await _allowed(connection) if user else (),
    )


async def _allowed(connection: RedisConnection) -> tuple[str, ...]:
    probes = {"DEL": (PROBE_KEY,), "XSETID": (PROBE_KEY, "1-1")}
    allowed = []
    for command, arguments in probes.items():
        reply = await _reply(connection, command, *arguments)
        if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOPERM"):
            continue
        # Another refusal is because the key does not exist, so the command itself is allowed.
        allowed.append(command)
    return tuple(allowed)


async def _info(connection: RedisConnection, section: str) -> Mapping[str, str]:
    return parse_info(await ask(connection, ["INFO", section]))


async def _try(connection: RedisConnection, *words: Word) -> Reply:
    """The reply; None if the server refuses the command."""
    reply = await _reply(connection, *words)
    return None if isinstance(reply, hiredis.ReplyError) else reply


async def _reply(connection: RedisConnection, *words: Word) -> Reply:
    reply = await connection.submit(words)
    if isinstance(reply, ConnectionError):
        raise reply
    return reply


def _value(reply: object) -> str:
    """The value in CONFIG GET's reply; empty if it is denied or unknown."""
    if isinstance(reply, list) and len(reply) == 2 and isinstance(reply[1], bytes):
        return reply[1].decode()
    return ""
