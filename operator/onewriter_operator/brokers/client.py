"""One broker's HTTP interface, as the operator uses it (docs/http.md).

Every failure is one of two: ``BrokerUnreachable``, the result is unknown; ``BrokerRefused``, the broker
refused the request.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import aiohttp

from onewriter_core.json_values import Json
from onewriter_core.topic_view import TopicView, parse_view
from onewriter_operator.plan.facts import StoredTopic

REQUEST_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 5.0

SILENCE_SECONDS: Final = 16.0
"""A stream without a line for this time is dead: brokers send a line every five seconds."""

LINE_BYTES_MAX: Final = 4 * 1024 * 1024
"""The longest line of a stream."""

TOKEN_SECONDS: Final = 60.0
"""How long a token is used before its file is read again; the kubelet renews it early enough."""

REASON_LENGTH_MAX: Final = 500


class BrokerUnreachable(Exception):
    """No usable answer: the broker may or may not have executed the request."""


class BrokerRefused(Exception):
    """The broker refused the request. ``errors`` has one sentence for each mistake."""

    def __init__(self, status: int, errors: list[str]) -> None:
        super().__init__(f"{status}: {'; '.join(errors)[:REASON_LENGTH_MAX]}")
        self.status = status
        self.errors = errors


class NotServedHere(BrokerUnreachable):
    """Another broker serves the topic."""


class Credentials:
    """The operator's token for brokers, read again as the kubelet renews it; none without a file."""

    def __init__(self, token_file: Path | None, ca_file: Path | None = None) -> None:
        self._token_file = token_file
        self._ca_file = ca_file
        self._token = ""
        self._read_at = -TOKEN_SECONDS

    async def headers(self) -> dict[str, str]:
        """The header with the token. Raises BrokerUnreachable if the file cannot be read."""
        if self._token_file is None:
            return {}
        now = asyncio.get_running_loop().time()
        if now - self._read_at >= TOKEN_SECONDS:
            try:
                self._token = (await asyncio.to_thread(self._token_file.read_text)).strip()
            except (OSError, UnicodeDecodeError) as error:
                raise BrokerUnreachable(f"the token cannot be read: {error}") from error
            self._read_at = now
        return {"Authorization": f"Bearer {self._token}"}

    async def trust(self) -> ssl.SSLContext | bool:
        """The CA for TLS. Raises BrokerUnreachable if the file cannot be read."""
        if self._ca_file is None:
            return True
        try:
            return await asyncio.to_thread(ssl.create_default_context, cafile=str(self._ca_file))
        except OSError as error:
            raise BrokerUnreachable(f"the CA file cannot be read: {error}") from error


class BrokerClient:
    """Calls to one broker. Open it again to use renewed certificates."""

    def __init__(self, name: str, url: str, credentials: Credentials) -> None:
        self.name = name
        self.url = url
        self._credentials = credentials
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Use new connections, with the present certificates."""
        await self.close()
        connector = aiohttp.TCPConnector(limit=8, ssl=await self._credentials.trust())
        self._session = aiohttp.ClientSession(
            connector=connector, read_bufsize=LINE_BYTES_MAX // 2, raise_for_status=False
        )

    async def close(self) -> None:
        """End all connections."""
        # Unset first, so that a concurrent call fails as "not connected".
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    # ------------------------------------------------------------ calls

    async def put_desired(self, body: bytes) -> Json:
        """Send the whole desired state. Raises BrokerRefused (400: nothing changed)."""
        return await self._call("PUT", "/onewriter/v1/desired", data=body)

    async def revision(self) -> str:
        """The revision of the broker's desired state; empty if it has none."""
        found = await self._call("GET", "/onewriter/v1/desired")
        return str(found.get("revision") or "")

    async def members(self, seconds: float) -> dict[str, bool]:
        """Which brokers this one knows, and whether it counts them as alive. Raises BrokerRefused, BrokerUnreachable."""
        found = await self._call("GET", "/onewriter/v1/brokers", seconds=seconds)
        alive: dict[str, bool] = {}
        try:
            for each in found["brokers"]:
                name = str(each["name"])
                # A restarted broker has an entry for each of its processes.
                alive[name] = alive.get(name, False) or each["alive"] is True
        except (KeyError, TypeError) as error:
            raise BrokerUnreachable(
                f"the broker sent an invalid list of brokers: {error!r}"
            ) from error
        return alive

    async def look_up(self, names: Sequence[str]) -> tuple[dict[str, StoredTopic], set[str]]:
        """The topics that the broker knows, and the names to ask another broker about.

        Raises BrokerRefused, BrokerUnreachable.
        """
        answer = await self._call("POST", "/onewriter/v1/topics", json={"topics": list(names)})
        try:
            elsewhere = {str(name) for name in answer["elsewhere"]}
            found = {
                name: StoredTopic(
                    True,
                    bool(each["declared"]),
                    int(each["epoch"]),
                    is_undivided=bool(each.get("undivided")),
                    declared_by=str(each.get("declaredBy") or ""),
                )
                for name, each in answer["topics"].items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BrokerUnreachable(
                f"the broker sent an invalid list of topics: {error!r}"
            ) from error
        return {
            name: found.get(name, StoredTopic()) for name in names if name not in elsewhere
        }, elsewhere

    async def topic(self, name: str) -> TopicView | None:
        """The broker's view of a topic; None if the topic does not exist."""
        try:
            return parse_view(await self._call("GET", _topic_path(name)))
        except BrokerRefused as refused:
            if refused.status == 404:
                return None
            raise

    async def fence(self, name: str, epoch: int) -> Json:
        """Fence the holder of exactly this epoch. Raises BrokerRefused 412 for another one."""
        return await self._call("POST", f"{_topic_path(name)}/fence", json={"ifEpoch": epoch})

    async def hand_over(self, name: str, epoch: int, to: str) -> Json:
        """Hand over from the holder of exactly this epoch.

        Raises BrokerRefused (412: another epoch; 409: no producer waits).
        """
        body = {"ifEpoch": epoch} | ({"to": to} if to else {})
        return await self._call("POST", f"{_topic_path(name)}/handover", json=body)

    async def partitions(self, name: str) -> int:
        """The number of a topic's partitions; 0 without partitions or without a topic."""
        try:
            found = await self._call("GET", f"{_pulsar_path(name)}/partitions")
        except BrokerRefused as refused:
            if refused.status == 404:
                return 0
            raise
        return _count(found, "partitions")

    async def entries(self, name: str, partitions: int) -> int:
        """The number of entries in a topic's present ledgers; brokers do not count earlier ones."""
        names = [f"{name}-partition-{n}" for n in range(partitions)] if partitions else [name]
        total = 0
        for each in names:
            try:
                found = await self._call("GET", f"{_pulsar_path(each)}/internalStats")
            except BrokerRefused as refused:
                if refused.status != 404:
                    raise
                continue
            total += _count(found, "numberOfEntries")
        return total

    async def delete(
        self, name: str, partitions: int, *, only_if_empty: bool, declared_by: str = ""
    ) -> bool:
        """Delete a topic's log; its epochs stay. False: it has entries and stays.

        Raises BrokerRefused if another namespace than ``declared_by`` declared the topic first, or (412)
        if ``only_if_empty`` and a client is connected.
        """
        path = f"{_pulsar_path(name)}{'/partitions' if partitions else ''}"
        switches = {"force": not only_if_empty, "onlyIfEmpty": only_if_empty}
        params = {k: str(v).lower() for k, v in switches.items()}
        if declared_by:
            params["declaredBy"] = declared_by
        try:
            await self._call("DELETE", path, params=params)
        except BrokerRefused as refused:
            if refused.status == 409 and only_if_empty:
                return False
            if refused.status != 404:
                raise
        return True

    async def watch(self) -> AsyncIterator[Json]:
        """The lines of the broker's stream, until it ends. Raises BrokerUnreachable, BrokerRefused."""
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS
        )
        headers = await self._credentials.headers()
        try:
            async with self._open_session().get(
                f"{self.url}/onewriter/v1/watch",
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
            ) as answer:
                if answer.status != 200:
                    raise await _refused(answer)
                async for line in answer.content:
                    if line.strip():
                        yield _object(line)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise BrokerUnreachable(_words(error)) from error

    # ------------------------------------------------------------ inside

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise BrokerUnreachable("not connected")
        return self._session

    async def _call(
        self, method: str, path: str, *, seconds: float = REQUEST_SECONDS, **parameters: Any
    ) -> Json:
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=min(seconds, CONNECT_SECONDS))
        headers = await self._credentials.headers()
        try:
            async with self._open_session().request(
                method,
                self.url + path,
                headers=headers,
                timeout=timeout,
                # Without redirects, only the configured brokers receive the token.
                allow_redirects=False,
                **parameters,
            ) as answer:
                if 300 <= answer.status < 400:
                    raise NotServedHere(f"broker {self.name} does not serve the topic")
                if answer.status >= 400:
                    raise await _refused(answer)
                text = await answer.read()
                return _object(text) if text.strip() else {}
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise BrokerUnreachable(_words(error)) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # This task was not cancelled: closing the session cancels a name look-up in progress.
            raise BrokerUnreachable("the connection was closed during the request") from error


def _topic_path(name: str) -> str:
    return f"/onewriter/v1/topics/{_parts(name)}"


def _pulsar_path(name: str) -> str:
    return f"/admin/v2/persistent/{_parts(name)}"


def _parts(name: str) -> str:
    tenant, namespace, local = name.partition("://")[2].split("/", 2)
    return "/".join(quote(part, safe="") for part in (tenant, namespace, local))


async def _refused(answer: aiohttp.ClientResponse) -> Exception:
    """BrokerRefused for a permanent refusal, BrokerUnreachable for one that may be temporary."""
    text = (await answer.content.read(64 * 1024)).decode("utf-8", "replace")
    try:
        document = json.loads(text)
    except ValueError:
        document = {}
    errors = document.get("errors") if isinstance(document, dict) else None
    if not isinstance(errors, list):
        reason = document.get("reason") if isinstance(document, dict) else None
        errors = [reason or text or answer.reason]
    errors = [str(each)[:REASON_LENGTH_MAX] for each in errors]
    if answer.status >= 500 or answer.status in {401, 403, 408, 429}:
        return BrokerUnreachable(f"{answer.status}: {'; '.join(errors)[:REASON_LENGTH_MAX]}")
    return BrokerRefused(answer.status, errors)


def _object(text: bytes) -> Json:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - a broker's answer, not a defect of the caller
    return found


def _count(found: Json, name: str) -> int:
    """A number of an answer. Raises BrokerUnreachable if the answer lacks it."""
    value = found.get(name)
    if not isinstance(value, int):
        raise BrokerUnreachable(f"the broker's answer has no number {name!r}")
    return value


def _words(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:REASON_LENGTH_MAX]
