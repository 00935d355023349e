"""Writes Kubernetes Events, few and aggregated: a repeated Event becomes a count.

Events are for people; no component depends on them. So the recorder never blocks its callers, drops
(and counts) Events beyond its bounds, and gives up on an Event after a few attempts.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from onewriter_core.json_values import Json, present
from onewriter_core.kubernetes.kinds import EVENT, Key, micro_timestamp
from onewriter_core.kubernetes.objects import KubeObject
from onewriter_operator.kube import ApiRefused, ApiUnreachable, Kube
from onewriter_operator.plan.actions import EmitEvent

WAITING_MAX: Final = 1_000
"""Events in the queue; further ones are dropped."""

REMEMBERED_MAX: Final = 4_096
"""Events whose count may still rise."""

SERIES_SECONDS: Final = 360.0
"""An Event that is repeated within this time raises the count; later, a new Event begins."""

COUNT_SECONDS: Final = 30.0
"""Least interval between two writes of a count."""

NOTE_LENGTH_MAX: Final = 1_000

ALIKE_MAX: Final = 10
"""Different notes about one object for one reason within ``SERIES_SECONDS``; further ones are counted as
one Event, whose note says so."""

ATTEMPTS_MAX: Final = 3
RETRY_SECONDS: Final = 2.0

REPORTING_CONTROLLER: Final = "onewriter.dev/operator"

log = structlog.get_logger(__name__)

_Same = tuple[str, str, str]


@dataclass(slots=True)
class _Series:
    """One Event and its count. ``name`` is empty until the Event is written."""

    name: str
    namespace: str
    count: int
    said_at: float
    written_count: int
    written_at: float


class Recorder:
    """Writes Events in the background. ``dropped`` is called for each that is not written."""

    def __init__(
        self,
        kube: Kube,
        instance: str,
        wall_clock: Callable[[], float],
        dropped: Callable[[], None] = lambda: None,
        *,
        alike_max: int = ALIKE_MAX,
        remembered_max: int = REMEMBERED_MAX,
    ) -> None:
        self._alike_max = alike_max
        self._remembered_max = remembered_max
        self._kube = kube
        self._instance = instance
        self._wall_clock = wall_clock
        self._dropped = dropped
        self._series: OrderedDict[_Same, _Series] = OrderedDict()
        self._recent: OrderedDict[tuple[str, str], list[float]] = OrderedDict()
        self._waiting: asyncio.Queue[tuple[_Same, Json]] = asyncio.Queue(WAITING_MAX)

    def emit(self, about: KubeObject, event: EmitEvent) -> None:
        """Queue an Event about an object; a repeated one raises the count.

        Answers are written at once and never left out: there are as many as orders of administrators.
        """
        now = asyncio.get_running_loop().time()
        is_new = (about.uid, event.reason, event.note) not in self._series
        if is_new and not event.is_answer and self._is_over_limit(about, event):
            event = EmitEvent(event.reason, f"(and others alike) {event.reason}", event.is_warning)
        same = (about.uid, event.reason, event.note)
        known = self._series.get(same)
        if known is not None and now - known.said_at < SERIES_SECONDS:
            known.count += 1
            known.said_at = now
            self._series.move_to_end(same)
            if now - known.written_at < COUNT_SECONDS and not event.is_answer:
                return  # the next write contains the count
        else:
            namespace = about.key.namespace or "default"
            self._series[same] = _Series("", namespace, 1, now, 0, now)
            self._series.move_to_end(same)
            while len(self._series) > self._remembered_max:
                self._series.popitem(last=False)
        try:
            self._waiting.put_nowait((same, _event(about, event)))
        except asyncio.QueueFull:
            self._dropped()

    def _is_over_limit(self, about: KubeObject, event: EmitEvent) -> bool:
        """Whether the object had too many different notes for the reason lately: then this one is only counted."""
        now = asyncio.get_running_loop().time()
        which = (about.uid, event.reason)
        recent = [at for at in self._recent.get(which, ()) if now - at < SERIES_SECONDS]
        if len(recent) < self._alike_max:
            recent.append(now)
        self._recent[which] = recent
        self._recent.move_to_end(which)
        while len(self._recent) > self._remembered_max:
            self._recent.popitem(last=False)
        return len(recent) >= self._alike_max

    async def run(self) -> None:
        """Write the queued Events until cancelled."""
        while True:
            same, event = await self._waiting.get()
            series = self._series.get(same)
            if series is None or series.count == series.written_count:
                continue
            await self._write(series, event)

    async def _write(self, series: _Series, event: Json) -> None:
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                await self._write_once(series, event)
            except ApiRefused as refused:
                if refused.is_gone and series.name:
                    series.name = ""  # it expired: begin a new Event
                    continue
                if refused.status < 500 and refused.status != 429:
                    log.info("event.refused", reason=str(refused))
                    return
            except ApiUnreachable as error:
                log.info("event.unwritten", reason=str(error), attempt=attempt)
            else:
                series.written_at = asyncio.get_running_loop().time()
                return
            await asyncio.sleep(RETRY_SECONDS * attempt)
        self._dropped()

    async def _write_once(self, series: _Series, event: Json) -> None:
        now = micro_timestamp(self._wall_clock())
        count = series.count
        if series.name:
            change = {"series": {"count": count, "lastObservedTime": now}}
            await self._kube.merge(EVENT, Key(EVENT.kind, series.namespace, series.name), change)
        else:
            name = f"{event['regarding']['name'][:200]}.{uuid.uuid4().hex[:16]}"
            written = event | {
                "metadata": {"name": name, "namespace": series.namespace},
                "eventTime": now,
                "reportingInstance": self._instance,
            }
            if count > 1:
                written["series"] = {"count": count, "lastObservedTime": now}
            await self._kube.create(EVENT, written)
            series.name = name
        series.written_count = count


def _event(about: KubeObject, event: EmitEvent) -> Json:
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "reportingController": REPORTING_CONTROLLER,
        "action": "Reconcile",
        "type": "Warning" if event.is_warning else "Normal",
        "reason": event.reason,
        "note": event.note[:NOTE_LENGTH_MAX],
        "regarding": {
            "apiVersion": about.api_version,
            "kind": about.key.kind,
            "name": about.key.name,
            **present(namespace=about.key.namespace, uid=about.uid),
            "resourceVersion": about.resource_version,
        },
    }
