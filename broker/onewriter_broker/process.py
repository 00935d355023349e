"""One broker process: ``python -m onewriter_broker.process SETTINGS_FILE [HEARTBEAT]``.

It reads its settings from a file that the supervisor wrote, checks the store, builds the broker and runs it
until SIGTERM, SIGINT or the end of its supervisor. It also runs without a supervisor.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path

import structlog
import uvloop

from onewriter_broker.anchor.api import Anchor
from onewriter_broker.anchor.file import FileAnchor
from onewriter_broker.anchor.kubernetes import KubernetesAnchor
from onewriter_broker.app import Broker, Dependencies
from onewriter_broker.auth.authentication import (
    AnonymousAuthenticator,
    Authenticator,
    EitherAuthenticator,
)
from onewriter_broker.auth.authenticators import authenticator
from onewriter_broker.desired import read_initial
from onewriter_broker.kubernetes_api import ApiServer, KubernetesApi, in_cluster
from onewriter_broker.local.supervisor import REFUSED_CODE, Heartbeat
from onewriter_broker.log.store.redis.primary import RedisSettings
from onewriter_broker.log.store.redis.server_checks import (
    Declared,
    Verdict,
    check_cluster,
    check_server,
    judge,
    judge_cluster,
)
from onewriter_broker.log.store.redis.store import RedisLogStore
from onewriter_broker.log.store.redis.store_tls import StoreTls
from onewriter_broker.logs import configure_logging
from onewriter_broker.settings import Settings
from onewriter_broker.termination_message import termination_file, write_termination_message
from onewriter_broker.tls import certificate_of
from onewriter_core.api.anchor import BUCKETS_PER_OBJECT_MAX
from onewriter_core.errors import ConfigurationError, OnewriterError, Undecided

STORE_WAIT_SECONDS = 30.0
"""Time that a starting broker waits for its store to answer."""

STORE_POLL_SECONDS = 0.2

SERVICE_ACCOUNT_AUDIENCE = "onewriter"
"""The audience of ServiceAccounts' tokens if the settings name none."""

YOUNG_OBJECTS_MAX = 10_000
"""Objects that are created before Python looks among them for unreachable cycles, which takes some milliseconds. Its
default of 700 takes a sixth of the CPU while thousands of topics are loaded."""

YOUNG_COLLECTIONS_MAX = 5
"""Such collections before the survivors are searched, too."""

COMMIT_SECONDS = 0.02
"""Duration of one question whether replicas or the disk have caught up. All writes wait for it."""

BackgroundTask = Callable[[], Coroutine[object, object, None]]
"""Runs beside a broker until it is cancelled."""

log = structlog.get_logger(__name__)


def redis_settings(settings: Settings) -> RedisSettings:
    """The settings of this broker's connection to its store."""
    sentinels = tuple(s.strip() for s in settings.redis_sentinels.split(",") if s.strip())
    return RedisSettings(
        url=settings.redis_url,
        sentinels=sentinels,
        sentinel_primary=settings.redis_sentinel_master if sentinels else "",
        username=settings.redis_username,
        password_file=settings.redis_password_file,
        tls=StoreTls(
            ca_file=settings.redis_ca_file,
            cert_file=settings.redis_cert_file,
            key_file=settings.redis_key_file,
            server_name=settings.redis_server_name,
        ),
        buckets=settings.buckets,
        replicas=settings.redis_replicas,
        call_timeout_seconds=settings.store_timeout_seconds,
        commit_timeout_seconds=COMMIT_SECONDS,
    )


def api_of(settings: Settings, environment: Mapping[str, str]) -> KubernetesApi | None:
    """The API server for anchor and tokens; None if neither needs it. Raises ConfigurationError."""
    if settings.anchor != "kubernetes" and not settings.token_review:
        return None
    if not settings.kubernetes_url:
        return KubernetesApi(in_cluster(environment))
    if settings.kubernetes_ca_file is None or settings.kubernetes_token_file is None:
        raise ConfigurationError(
            "kubernetes_url goes together with kubernetes_ca_file and kubernetes_token_file"
        )
    server = ApiServer(
        settings.kubernetes_url.rstrip("/"),
        settings.kubernetes_ca_file,
        settings.kubernetes_token_file,
        settings.kubernetes_namespace or "default",
    )
    return KubernetesApi(server)


def open_anchor(settings: Settings, api: KubernetesApi | None) -> Anchor:
    """The anchor of the settings. Raises ConfigurationError."""
    if settings.anchor == "file" or api is None:
        return FileAnchor(settings.data_dir / "anchor")
    if settings.buckets > BUCKETS_PER_OBJECT_MAX:
        raise ConfigurationError(
            f"buckets: the anchor in Kubernetes holds {BUCKETS_PER_OBJECT_MAX} at most"
        )
    return KubernetesAnchor(api, settings.anchor_name, settings.kubernetes_namespace)


def reviewing(settings: Settings, api: KubernetesApi) -> tuple[Authenticator, BackgroundTask]:
    """The authenticator if the API server reviews tokens (and keys, if there are any), and its background
    tasks.
    """
    from onewriter_broker.auth import token_review  # noqa: PLC0415 - cryptography, only where it is used

    keys = token_review.ClusterKeys(api)
    review = token_review.TokenReviewAuthenticator(
        api,
        keys,
        settings.token_audience or SERVICE_ACCOUNT_AUDIENCE,
        is_required=settings.authentication_required,
        unix_seconds=api.unix_seconds,
    )
    static = authenticator(settings, api.unix_seconds)
    return review if static is None else EitherAuthenticator(static, review), keys.run


def is_single_node(settings: Settings) -> bool:
    """Whether no other copy of the store's data can ever take its place.

    An address does not show this: a Service may route to a promoted replica, or to a former primary that came
    back.
    """
    return settings.redis_is_alone and not settings.redis_sentinels


async def check_store(settings: Settings) -> Verdict:
    """Wait for the store to answer, and refuse one that is weaker than configured."""
    store = redis_settings(settings)
    deadline = time.monotonic() + STORE_WAIT_SECONDS
    while True:
        try:
            verdict = await _judge_store(store, settings, is_last=time.monotonic() > deadline)
            break
        except Undecided as undecided:
            if time.monotonic() > deadline:
                raise ConfigurationError(f"the store does not answer: {undecided}") from undecided
            log.warning("store.waiting", reason=str(undecided))
            await asyncio.sleep(STORE_POLL_SECONDS)
    for warning in verdict.warnings:
        log.warning("store.warning", text=warning)
    if verdict.refusals:
        raise ConfigurationError("the store cannot be used: " + "; ".join(verdict.refusals))
    for text in verdict.declared:
        log.warning("store.declared", text=f"{text} is declared, and was not checked")
    return verdict


async def _judge_store(store: RedisSettings, settings: Settings, *, is_last: bool) -> Verdict:
    """What the store can promise. Raises Undecided if it does not answer, or not all primaries of a cluster.

    ``is_last``: the primaries of a cluster that answer are enough, because the others may be lost for longer.
    """
    minimum, replicas = settings.minimum_durability, settings.redis_replicas
    declared = Declared(settings.redis_declared_durability, settings.redis_declared_noeviction)
    if not store.is_cluster:
        return judge(await check_server(store), minimum, replicas=replicas, declared=declared)
    found = await check_cluster(store)
    if found.failures and not (is_last and found.answered):
        raise Undecided("; ".join(found.failures.values()))
    return judge_cluster(found, minimum, replicas=replicas, declared=declared)


async def dependencies_of(settings: Settings, api: KubernetesApi | None) -> Dependencies:
    """The dependencies of the broker. Raises ConfigurationError."""
    initial = read_initial(settings)
    token_seconds: Callable[[], float] | None = None
    certificate = certificate_of(settings)
    background_tasks: list[BackgroundTask] = []
    if api is not None and settings.token_review:
        verifier, background_task = reviewing(settings, api)
        background_tasks.append(background_task)
        token_seconds = api.unix_seconds
    else:
        verifier = authenticator(settings) or AnonymousAuthenticator()
    anchor = open_anchor(settings, api)
    verdict = await check_store(settings)
    return Dependencies(
        settings=settings,
        promises=verdict.promises,
        declared=verdict.declared,
        store=RedisLogStore(redis_settings(settings)),
        anchor=anchor,
        authenticator=verifier,
        desired=initial,
        single_node=is_single_node(settings),
        certificate=certificate,
        background_tasks=background_tasks,
        token_seconds=token_seconds,
    )


async def serve(settings: Settings, heartbeat: int | None) -> None:
    """Run one broker until it is stopped."""
    api = api_of(settings, os.environ)
    try:
        broker = Broker(await dependencies_of(settings, api))
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, broker.reread)
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(_forget_earlier_reason(broker))]
            if heartbeat is not None:
                beside.append(tasks.create_task(Heartbeat(heartbeat, stop.set).run()))
            await broker.run(stop)
            for task in beside:
                task.cancel()
    finally:
        if api is not None:
            await api.close()


async def _forget_earlier_reason(broker: Broker) -> None:
    """Once the broker serves, remove the reason for which an earlier process of the container ended."""
    await broker.is_ready.wait()
    write_termination_message(termination_file(), "")


def main(arguments: Sequence[str]) -> int:
    """Run; the exit code is 2 for an invalid configuration or store."""
    configure_logging()
    settings = Settings.model_validate_json(Path(arguments[0]).read_text())
    heartbeat = int(arguments[1]) if len(arguments) > 1 else None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard) if soft < hard else (soft, hard))
    gc.freeze()  # imported objects live as long as the process
    gc.set_threshold(YOUNG_OBJECTS_MAX, YOUNG_COLLECTIONS_MAX)
    code = 0
    try:
        uvloop.run(serve(settings, heartbeat))
    except* (OnewriterError, OSError) as errors:
        code = REFUSED_CODE
        reasons = _reasons(errors)
        write_termination_message(termination_file(), "; ".join(reasons))
        # Print a sentence instead of a traceback, for example for a port in use.
        for reason in reasons:
            log.error("broker.refused", name=settings.name, reason=reason)  # noqa: TRY400 - as above
    except* Exception as defects:
        text = "; ".join(_reasons(defects, with_type=True))
        write_termination_message(termination_file(), f"a defect of the broker: {text}")
        raise
    return code


def _reasons(errors: BaseExceptionGroup[BaseException], *, with_type: bool = False) -> list[str]:
    """The reason of each error of a group, including nested groups."""
    found: list[str] = []
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            found += _reasons(error, with_type=with_type)
        else:
            found.append(f"{type(error).__name__}: {error}" if with_type else str(error))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
