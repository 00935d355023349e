"""One broker process: ``python -m onewriter_broker.process SETTINGS_FILE [HEARTBEAT]``.

Reads its settings from a file that the supervisor wrote, checks the store, builds the broker and
runs it until SIGTERM, SIGINT or the end of its supervisor. It can be run without a supervisor.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import structlog
import uvloop

from onewriter_broker.anchor.file import FileAnchor
from onewriter_broker.app import Broker, Parts
from onewriter_broker.local.supervisor import REFUSED_CODE, Heartbeat
from onewriter_broker.log.api import Durability
from onewriter_broker.log.redis_primary import RedisSettings
from onewriter_broker.log.redis_store import RedisLogStore
from onewriter_broker.log.server_checks import check_server, judge
from onewriter_broker.logs import configure_logging
from onewriter_broker.settings import Settings
from onewriter_broker.tokens import (
    AnonymousAuthenticator,
    Authenticator,
    StaticTokenAuthenticator,
    load_keys,
)
from onewriter_core.api import ExclusiveTopic, ProducerClaim, unsupported
from onewriter_core.api.manifests import DesiredState, load
from onewriter_core.errors import ConfigurationError, OnewriterError, Undecided

STORE_WAIT_SECONDS = 30.0
"""How long a starting broker waits for its store to answer."""

STORE_POLL_SECONDS = 0.2

COMMIT_SECONDS = 0.02
"""One question whether replicas or the disk have caught up: it holds up all that is written."""

log = structlog.get_logger(__name__)


def redis_settings(settings: Settings) -> RedisSettings:
    """How this broker reaches its store."""
    sentinels = tuple(s.strip() for s in settings.redis_sentinels.split(",") if s.strip())
    return RedisSettings(
        url=settings.redis_url,
        sentinels=sentinels,
        sentinel_primary=settings.redis_sentinel_master if sentinels else "",
        buckets=settings.buckets,
        replicas=settings.redis_replicas,
        call_timeout_seconds=settings.store_timeout_seconds,
        commit_timeout_seconds=COMMIT_SECONDS,
    )


def read_manifests(settings: Settings) -> DesiredState:
    """What the manifests declare. Raises ConfigurationError."""
    desired = load(*settings.manifests) if settings.manifests else DesiredState()
    resources: list[ExclusiveTopic | ProducerClaim] = [*desired.topics, *desired.claims]
    refused = [
        f"{resource.kind} {resource.metadata}: {text}"
        for resource in resources
        for text in unsupported(resource)
    ]
    if refused:
        raise ConfigurationError("\n".join(refused))
    for warning in desired.warnings:
        log.warning("manifest", text=warning)
    return desired


def authenticator(settings: Settings) -> Authenticator:
    """Who proves identities. Raises ConfigurationError."""
    secrets = [settings.token_secret_file] if settings.token_secret_file else []
    publics = [settings.token_public_key_file] if settings.token_public_key_file else []
    if not secrets and not publics and not settings.authentication_required:
        return AnonymousAuthenticator()
    return StaticTokenAuthenticator(
        load_keys(secrets, publics),
        lambda: time.time_ns() / 1e9,
        is_required=settings.authentication_required,
    )


def is_single_node(settings: Settings) -> bool:
    """Whether no copy of the store's data can ever be shown in its place.

    An address alone does not say so: behind a Service's name a promoted replica may stand, or the
    old primary that came back.
    """
    return settings.redis_is_alone and not settings.redis_sentinels


async def check_store(settings: Settings) -> frozenset[Durability]:
    """Wait for the store to answer, refuse one weaker than configured; what it can promise."""
    deadline = time.monotonic() + STORE_WAIT_SECONDS
    while True:
        try:
            facts = await check_server(redis_settings(settings))
            break
        except Undecided as undecided:
            if time.monotonic() > deadline:
                raise ConfigurationError(f"the store does not answer: {undecided}") from undecided
            log.warning("store.waiting", reason=str(undecided))
            await asyncio.sleep(STORE_POLL_SECONDS)
    verdict = judge(facts, settings.minimum_durability, replicas=settings.redis_replicas)
    for warning in verdict.warnings:
        log.warning("store.warning", text=warning)
    if verdict.refusals:
        raise ConfigurationError("the store cannot be used: " + "; ".join(verdict.refusals))
    return verdict.promises


async def serve(settings: Settings, heartbeat: int | None) -> None:
    """Run one broker until it is told to stop."""
    desired = read_manifests(settings)
    promises = await check_store(settings)
    broker = Broker(
        Parts(
            settings=settings,
            store=RedisLogStore(redis_settings(settings)),
            anchor=FileAnchor(settings.data_dir / "anchor"),
            authenticator=authenticator(settings),
            desired=desired,
            single_node=is_single_node(settings),
            promises=promises,
        )
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with asyncio.TaskGroup() as tasks:
        beating = None
        if heartbeat is not None:
            beating = tasks.create_task(Heartbeat(heartbeat, stop.set).run())
        await broker.run(stop)
        if beating is not None:
            beating.cancel()


def main(arguments: Sequence[str]) -> int:
    """Run; the exit code is 2 for a wrong configuration or store."""
    configure_logging()
    settings = Settings.model_validate_json(Path(arguments[0]).read_text())
    heartbeat = int(arguments[1]) if len(arguments) > 1 else None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard) if soft < hard else (soft, hard))
    gc.freeze()  # what was imported lives as long as the process
    code = 0
    try:
        uvloop.run(serve(settings, heartbeat))
    except* (OnewriterError, OSError) as errors:
        code = REFUSED_CODE
        for reason in _reasons(
            errors
        ):  # a sentence for a person, not a traceback: a port in use, say
            log.error("broker.refused", name=settings.name, reason=reason)  # noqa: TRY400 - as above
    return code


def _reasons(errors: BaseExceptionGroup[BaseException]) -> list[str]:
    """What each error of a group says, groups in it taken apart."""
    found: list[str] = []
    for error in errors.exceptions:
        found += _reasons(error) if isinstance(error, BaseExceptionGroup) else [str(error)]
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
