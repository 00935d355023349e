"""One interface to the three client APIs: the SDK, its blocking variant, and the sidecar's HTTP interface.

An ``Application`` uses one of them for one topic. Its methods block, and raise ``Rejected`` if the API refuses.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.integration.sidecars import Sidecar

import onewriter.sync
from onewriter import AccessMode, Fenced, OnewriterError, ProducerOptions
from onewriter.state import SharedMap

SECONDS_MAX = 120.0
GROUP = "group"

_names = itertools.count()


class Rejected(Exception):
    """The API refused. ``current``: the epoch or the generation that counts, if the API reports it."""

    def __init__(self, text: str, current: int | None = None) -> None:
        super().__init__(text)
        self.current = current


class Application(ABC):
    """An application that may lead ``topic``, own resources and write maps."""

    @abstractmethod
    def lead(self) -> int:
        """Wait until it leads; return its epoch."""

    @abstractmethod
    def publish(self, content: bytes, *, target: str = "") -> int:
        """Publish as the last leader that ``lead`` returned; ``target``: to another topic, under its guard."""

    @abstractmethod
    def lost(self) -> None:
        """Wait until the application is notified that it leads no more."""

    @abstractmethod
    def release(self) -> None:
        """Give up the topic."""

    @abstractmethod
    def own(self, resource: str, generation: int | None = None) -> int:
        """Own a resource as a member of ``GROUP``; return the generation."""

    @abstractmethod
    def not_owned(self, resource: str) -> int | None:
        """Wait until it owns the resource no more; return the generation that counts."""

    @abstractmethod
    def disown(self, resource: str) -> None:
        """Give up a resource."""

    @abstractmethod
    def get(self, name: str, key: str) -> int | None:
        """The newest value of a key in a map."""

    @abstractmethod
    def put(self, name: str, key: str, value: int) -> None:
        """Set a value."""

    @abstractmethod
    def replace(self, name: str, key: str, value: int | None, to: int) -> bool:
        """Set the value if it is still ``value``; None: if there is none."""

    @abstractmethod
    def delete(self, name: str, key: str) -> None:
        """Remove a key."""


class Library(Application):
    """An application that uses the SDK, with or without asyncio: both have the same names."""

    def __init__(self, client: Any, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._leadership: Any = None
        self._owned: dict[str, Any] = {}
        self._maps: dict[str, Any] = {}
        self._stack = contextlib.ExitStack()

    def run(self, work: Callable[[], Any]) -> Any:
        """The result of a call. Raises Rejected."""
        try:
            return self.result(work)
        except Fenced as error:
            raise Rejected(str(error), error.current_epoch) from error
        except OnewriterError as error:
            raise Rejected(str(error)) from error

    @abstractmethod
    def result(self, work: Callable[[], Any]) -> Any:
        """The result of a call."""

    @abstractmethod
    def enter(self, context: Callable[[], Any]) -> Any:
        """Enter a context, which ends with the application."""

    def close(self) -> None:
        self._stack.close()

    def lead(self) -> int:
        waits = ProducerOptions(access_mode=AccessMode.WAIT_FOR_EXCLUSIVE)
        self._leadership = self.enter(
            lambda: self._client.lead(self._topic, announce=False, options=waits)
        )
        return int(self._leadership.epoch)

    def publish(self, content: bytes, *, target: str = "") -> int:
        leads = self._leadership
        self.run(lambda: (leads.guarded(target) if target else leads).send(content))
        return int(leads.epoch)

    def release(self) -> None:
        self.run(self._leadership.handover)

    def own(self, resource: str, generation: int | None = None) -> int:
        name = resource if generation is None else (resource, generation)
        (owned,) = self.owned(lambda: self._client.own(GROUP, [name], identity=self._topic))
        self._owned[resource] = owned
        return int(self.run(lambda: owned.generation))

    @abstractmethod
    def owned(self, own: Callable[[], Any]) -> Any:
        """The ownerships of a request."""

    def disown(self, resource: str) -> None:
        self.run(self._owned[resource].release)

    def _map(self, name: str) -> Any:
        if name not in self._maps:
            self._maps[name] = self.enter(lambda: self.new_map(name))
        return self._maps[name]

    @abstractmethod
    def new_map(self, name: str) -> Any:
        """A map that is not open yet."""

    def get(self, name: str, key: str) -> int | None:
        opened = self._map(name)
        found: int | None = self.run(lambda: opened.get(key, latest=True))
        return found

    def put(self, name: str, key: str, value: int) -> None:
        opened = self._map(name)
        self.run(lambda: opened.put(key, value))

    def replace(self, name: str, key: str, value: int | None, to: int) -> bool:
        opened = self._map(name)
        if value is None:
            return self.run(lambda: opened.put_if_absent(key, to)) is None
        return bool(self.run(lambda: opened.replace(key, value, to)))

    def delete(self, name: str, key: str) -> None:
        opened = self._map(name)
        self.run(lambda: opened.delete(key))


class Blocking(Library):
    """``onewriter.sync``."""

    def result(self, work: Callable[[], Any]) -> Any:
        return work()

    def enter(self, context: Callable[[], Any]) -> Any:
        return self._stack.enter_context(context())

    def lost(self) -> None:
        assert isinstance(self._leadership.lost.wait(SECONDS_MAX), Fenced)

    def owned(self, own: Callable[[], Any]) -> Any:
        return self.run(lambda: own().wait())

    def not_owned(self, resource: str) -> int | None:
        reason = self._owned[resource].lost.wait(SECONDS_MAX)
        return reason.current_epoch if isinstance(reason, Fenced) else None

    def new_map(self, name: str) -> Any:
        return onewriter.sync.SharedMap(self._client, name, str, int)


class Asynchronous(Library):
    """``onewriter`` in an event loop of its own."""

    def __init__(self, client: Any, topic: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(client, topic)
        self._loop = loop

    def result(self, work: Callable[[], Any]) -> Any:
        async def call() -> Any:
            found = work()
            return await found if inspect.isawaitable(found) else found

        running: Future[Any] = asyncio.run_coroutine_threadsafe(call(), self._loop)
        return running.result(SECONDS_MAX)

    def enter(self, context: Callable[[], Any]) -> Any:
        opened = self.result(context)
        entered = self.result(opened.__aenter__)
        self._stack.callback(lambda: self.result(lambda: opened.__aexit__(None, None, None)))
        return entered

    def lost(self) -> None:
        assert isinstance(self.result(lambda: self._leadership.lost), Fenced)

    def owned(self, own: Callable[[], Any]) -> Any:
        return self.run(own)

    def not_owned(self, resource: str) -> int | None:
        reason = self.result(lambda: self._owned[resource].lost)
        return reason.current_epoch if isinstance(reason, Fenced) else None

    def new_map(self, name: str) -> Any:
        return SharedMap(self._client, name, str, int)


class BesideSidecar(Application):
    """A program that speaks HTTP with its sidecar."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar
        self._http = sidecar.http
        self._session = ""

    def lead(self) -> int:
        self._session = self._sidecar.lead()
        return int(self._session.partition("-")[0])

    def publish(self, content: bytes, *, target: str = "") -> int:
        path = f"/publish?guard={quote(target, safe='')}" if target else "/publish"
        status, answer = self._http("POST", path, content, Onewriter_Session=self._session)
        if status == 200:
            return int(answer["epoch"])
        assert answer["stored"] is False, answer
        raise Rejected(str(answer), answer.get("epoch"))

    def lost(self) -> None:
        path = "/leadership?until=queueing&timeoutSeconds=5"
        while self._http("GET", path)[1]["session"] == self._session:
            pass

    def release(self) -> None:
        assert self._sidecar.release(rejoin=False)[0] == 200

    def own(self, resource: str, generation: int | None = None) -> int:
        name = resource if generation is None else {"name": resource, "generation": generation}
        status, answer = self._http("POST", "/own", {"group": GROUP, "resources": [name]})
        assert status == 200, answer
        (owned,) = answer["ownerships"]
        if not owned["owned"]:
            raise Rejected(owned["error"])
        return int(owned["generation"])

    def not_owned(self, resource: str) -> int | None:
        while True:
            path = f"/own?group={GROUP}&until=lost&timeoutSeconds=5"
            for each in self._http("GET", path)[1]["ownerships"]:
                if each["resource"] == resource and not each["owned"]:
                    current: int | None = each["currentGeneration"]
                    return current

    def disown(self, resource: str) -> None:
        assert self._sidecar.disown(GROUP, resource)[0] == 200

    def get(self, name: str, key: str) -> int | None:
        status, found = self._http("GET", f"/map/{name}/{key}?latest=true")
        return int(found) if status == 200 else None

    def put(self, name: str, key: str, value: int) -> None:
        assert self._http("PUT", f"/map/{name}/{key}", value)[0] in {200, 201}

    def replace(self, name: str, key: str, value: int | None, to: int) -> bool:
        if value is None:
            return self._http("PUT", f"/map/{name}/{key}", to, If_None_Match="*")[0] == 201
        if self.get(name, key) != value:
            return False
        etag = self._http.headers["ETag"]
        status, answer = self._http("PUT", f"/map/{name}/{key}", to, If_Match=etag)
        assert status in {200, 412}, answer
        return status == 200

    def delete(self, name: str, key: str) -> None:
        assert self._http("DELETE", f"/map/{name}/{key}")[0] == 200


@contextlib.contextmanager
def asynchronous(url: str, topic: str, _: Path) -> Iterator[Asynchronous]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    application = Asynchronous(None, topic, loop)
    try:
        application._client = application.enter(lambda: onewriter.Client(url))
        yield application
    finally:
        application.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextlib.contextmanager
def blocking(url: str, topic: str, _: Path) -> Iterator[Blocking]:
    with onewriter.sync.Client(url) as client, contextlib.closing(Blocking(client, topic)) as found:
        yield found


@contextlib.contextmanager
def beside_sidecar(url: str, topic: str, directory: Path) -> Iterator[BesideSidecar]:
    sidecar = Sidecar(directory, url, topic, f"app-{next(_names)}")
    try:
        sidecar.serving()
        yield BesideSidecar(sidecar)
    finally:
        assert sidecar.stop() == 0, sidecar.log


APIS = {"sdk": asynchronous, "sync": blocking, "sidecar": beside_sidecar}
