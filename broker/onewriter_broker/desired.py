"""The desired state of topics, from manifest files or from a client that pushes it.

On one machine, manifests are read at the start and again on SIGHUP. In Kubernetes, the operator pushes the
whole state over HTTP whenever it changes. The broker stores it in the data directory, so that it can start
while the operator is down. An invalid state changes nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog

from onewriter_broker.settings import Settings
from onewriter_core.api.desired import Reading, read_desired
from onewriter_core.api.manifests import DesiredState, load
from onewriter_core.api.tenancy import Tenancy, read_exceptions
from onewriter_core.errors import ConfigurationError, Refused, ServerError, Unavailable

BODY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Size of a pushed state."""

REFUSALS_MAX: Final = 1_000
"""Objects that a response names because they declare topics of foreign tenants."""

MANIFESTS: Final = "manifests"
"""The revision of files, which have no revision of their own."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Initial:
    """The state that a broker starts with.

    ``is_known``: the state is known; otherwise producers wait until it is pushed. ``manifests`` are read
    again on demand; without manifests, the state is pushed. ``file`` stores it.
    """

    state: DesiredState = DesiredState()
    reading: Reading | None = None
    is_known: bool = True
    manifests: tuple[Path, ...] = ()
    file: Path | None = None


class Desired:
    """The desired state of one broker. Each change is passed to ``apply``.

    ``tenancy`` is what namespaces may declare. A pushed state with other objects is refused.
    """

    def __init__(
        self,
        initial: Initial,
        apply: Callable[[DesiredState], None],
        tenancy: Tenancy | None = None,
    ) -> None:
        self.state = initial.state
        self.is_known = initial.is_known
        self._manifests = initial.manifests
        self._file = initial.file
        self._reading = initial.reading
        self._apply = apply
        self._tenancy = tenancy or Tenancy()
        self._changing = asyncio.Lock()

    @property
    def revision(self) -> str | None:
        """The revision that was pushed last; ``manifests`` if files are used, None before the first push."""
        if self._manifests:
            return MANIFESTS
        return None if self._reading is None else self._reading.revision

    async def put(self, body: bytes) -> Reading:
        """Apply a pushed state, now and for later starts; a second call waits for the first.

        Raises ConfigurationError with one line per error, Refused if manifests are used, and Unavailable if
        the state cannot be stored. In these cases, nothing has changed.
        """
        if self._manifests:
            text = "this broker reads manifest files (change them, then SIGHUP)"
            raise Refused(ServerError.PRODUCER_BUSY, text)
        async with self._changing:
            reading = await asyncio.to_thread(read_desired, body, self._reading)
            if refusals := self._tenancy.refusals(reading.state.topics):
                raise ConfigurationError("\n".join(refusals[:REFUSALS_MAX]))
            if self._file is not None:
                await asyncio.to_thread(_keep, self._file, body)
            self._reading = reading
            self._change(reading.state)
        log.info("desired.changed", **_counts(reading.state), revision=reading.revision)
        return reading

    async def reread(self) -> None:
        """Read the manifests again. Errors in them are logged and change nothing."""
        if not self._manifests:
            log.warning("desired.unchanged", reason="no manifest files were given")
            return
        async with self._changing:
            try:
                state = await asyncio.to_thread(_read_and_keep, self._manifests, self._file)
                if refusals := self._tenancy.refusals(state.topics):
                    raise ConfigurationError("\n".join(refusals[:REFUSALS_MAX]))
            except ConfigurationError as error:
                _log_rejected(error)
                return
            self._change(state)
        log.info("desired.changed", **_counts(state))

    def _change(self, state: DesiredState) -> None:
        self.state = state
        self.is_known = True
        self._apply(state)


def read_manifests(manifests: tuple[Path, ...]) -> DesiredState:
    """The declarations in manifest files. Raises ConfigurationError. Blocks on the file system."""
    state = load(*manifests) if manifests else DesiredState()
    refused = [
        f"{claim.kind} {claim.metadata}: spec.subject.podSelector: "
        "pods can only be judged in Kubernetes; leave it out"
        for claim in state.claims
        if claim.spec.subject.pod_selector is not None
    ]
    if refused:
        raise ConfigurationError("\n".join(refused))
    for warning in state.warnings:
        log.warning("manifest", text=warning)
    return state


def tenancy_of(settings: Settings) -> Tenancy:
    """What Kubernetes namespaces may declare here."""
    return Tenancy(settings.tenancy_enforced, read_exceptions(settings.tenancy_allow))


def read_initial(settings: Settings) -> Initial:
    """The state that a broker with these settings starts with, without objects that its tenancy does not
    allow.

    Raises ConfigurationError. Blocks on the file system.
    """
    initial = _read_initial(settings)
    tenancy = tenancy_of(settings)
    foreign = [
        topic
        for topic in initial.state.topics
        if not tenancy.allows(topic.metadata.namespace, topic.topic_name.tenant)
    ]
    for refusal in tenancy.refusals(foreign):
        log.error("desired.refused", reason=refusal)
    return replace(initial, state=initial.state.without(topic.topic_name for topic in foreign))


def _read_initial(settings: Settings) -> Initial:
    """The state that a broker with these settings starts with: manifests, or what was pushed last.

    If manifests became invalid since they were last read, the broker starts with what it read then. Raises
    ConfigurationError for other invalid manifests. Blocks on the file system.
    """
    file = settings.data_dir / "desired" / f"{settings.name}.json"
    if settings.manifests:
        try:
            state = _read_and_keep(settings.manifests, file)
        except ConfigurationError as error:
            kept = _read_kept(file)
            if kept is None or kept.revision != MANIFESTS:
                raise
            _log_rejected(error)
            state = kept.state
        return Initial(state, manifests=settings.manifests, file=file)
    kept = _read_kept(file)
    if kept is None or kept.revision == MANIFESTS:
        return Initial(is_known=settings.anchor != "kubernetes", file=file)
    return Initial(kept.state, kept, file=file)


def _read_and_keep(manifests: tuple[Path, ...], file: Path | None) -> DesiredState:
    """Read manifests, and store their contents for a start that finds them invalid."""
    state = read_manifests(manifests)
    if file is not None:
        document = {
            "revision": MANIFESTS,
            "topics": [topic.model_dump(mode="json", exclude_unset=True) for topic in state.topics],
            "claims": [claim.model_dump(mode="json", exclude_unset=True) for claim in state.claims],
        }
        try:
            _keep(file, json.dumps(document).encode())
        except Unavailable as error:
            log.warning("desired.unkept", reason=str(error))
    return state


def _read_kept(file: Path) -> Reading | None:
    """The stored state; None if there is no readable one."""
    try:
        return read_desired(file.read_bytes())
    except FileNotFoundError:
        return None
    except (ConfigurationError, OSError) as error:
        log.error("desired.unreadable", file=str(file), reason=str(error))  # noqa: TRY400 - no defect
        return None


def _log_rejected(error: ConfigurationError) -> None:
    for line in str(error).splitlines():
        log.error("desired.refused", reason=line)


def _keep(file: Path, body: bytes) -> None:
    """Replace the file atomically and durably. Raises Unavailable."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        staged = file.with_suffix(".new")
        with staged.open("wb") as stream:
            stream.write(body)
            stream.flush()
            os.fsync(stream.fileno())
        staged.replace(file)
        descriptor = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise Unavailable(f"the desired state cannot be stored: {error}") from error


def _counts(state: DesiredState) -> dict[str, int]:
    return {"topics": len(state.topics), "claims": len(state.claims)}
