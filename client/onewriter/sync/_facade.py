"""The facade of an asynchronous class: a blocking class with one declaration per member.

::

    class Guarded(Facade[AsyncGuarded]):
        topic: Reading[AsyncGuarded, str] = Reading(lambda it: it.topic)
        seal = blocking(AsyncGuarded.seal)

Types, parameters and docstrings are those of the asynchronous class, at run time and for the type checker. The
declaration says how the member is called:

=============== ====================================================================================
``Reading``     an attribute or a property: read at once, in any thread
``direct``      a method that neither waits nor uses the loop: called at once, in any thread
``calling``     a method that does not wait: called in the client's thread
``blocking``    a coroutine: run in the client's thread; the caller waits for its result
``closing``     like ``blocking``, but no error if the client closes meanwhile: that has the same effect
``submitting``  a method that returns a receipt's future: here a ``concurrent.futures.Future``
=============== ====================================================================================

The declarations are the whole facade: its members have a signature and a docstring without repeating them.
"""

from __future__ import annotations

import ast
import asyncio
import concurrent.futures
import inspect
import typing
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Concatenate, Generic, Never, ParamSpec, Self, TypeVar, cast, overload

from onewriter._errors import Closed
from onewriter._message import MessageId
from onewriter._transport.connection import Spawn
from onewriter.sync._thread import Thread

A_co = TypeVar("A_co", covariant=True)
A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


class Facade(Generic[A_co]):
    """Access from any thread to an object in a client's thread."""

    def __init__(self, inner: A_co, thread: Thread) -> None:
        self._inner = inner
        self._thread = thread

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and inner_and_thread(other)[0] is self._inner

    def __hash__(self) -> int:
        return id(self._inner)

    def __repr__(self) -> str:
        return f"<sync {self._inner!r}>"


def inner_and_thread(facade: Facade[A]) -> tuple[A, Thread]:
    """Return the asynchronous object, and its thread."""
    return facade._inner, facade._thread  # noqa: SLF001 - only the modules of this package call it


def async_class_of(facade: type) -> type:
    """Return the asynchronous class of a facade."""
    for each in facade.__mro__:
        for base in vars(each).get("__orig_bases__", ()):
            origin = typing.get_origin(base)
            if inspect.isclass(origin) and issubclass(origin, Facade):
                named, *_ = typing.get_args(base)
                found = getattr(named, "__bound__", None) or typing.get_origin(named) or named
                return cast("type", found)
    raise TypeError(f"{facade.__name__} has no asynchronous class")


# ---------------------------------------------------------------- types for the type checker


class Method(Generic[A, P, R]):
    """A method of a facade, with the parameters of the asynchronous method."""

    @overload
    def __get__(self, facade: None, owner: type) -> Self: ...

    @overload
    def __get__(self, facade: Facade[A], owner: type) -> Callable[P, R]: ...

    def __get__(self, facade: Facade[A] | None, owner: type) -> Any: ...


class Reading(Generic[A, R]):
    """Becomes a property of its class that reads the asynchronous object, from any thread."""

    def __init__(self, read: Callable[[A], R]) -> None:
        self._read = read

    def __set_name__(self, owner: type, name: str) -> None:
        read = self._read

        def reading(facade: Facade[A]) -> R:
            return read(inner_and_thread(facade)[0])

        asynchronous = inspect.getattr_static(async_class_of(owner), name, None)
        reading.__doc__ = asynchronous.__doc__ if isinstance(asynchronous, property) else None
        reading.__annotations__ = {"return": _second_argument(owner.__annotations__[name])}
        reading.__module__ = owner.__module__
        setattr(owner, name, property(reading))

    @overload
    def __get__(self, facade: None, owner: type) -> Self: ...

    @overload
    def __get__(self, facade: Facade[A], owner: type) -> R: ...

    def __get__(self, facade: Facade[A] | None, owner: type) -> Any: ...

    def __set__(self, facade: Facade[A], value: Never) -> None: ...


def _second_argument(annotation: str) -> str:
    """Return ``Y`` of the annotation ``X[A, Y]``."""
    named = ast.parse(annotation, mode="eval").body
    if isinstance(named, ast.Subscript) and isinstance(named.slice, ast.Tuple):
        return ast.unparse(named.slice.elts[1])
    raise TypeError(f"{annotation} does not say what is read")


# ---------------------------------------------------------------- declarations


def _method(like: Callable[..., Any], call: Callable[..., Any], gives: object = None) -> Any:
    """Return ``call(inner, thread, *args, **kwargs)`` as a method with the signature of ``like``.

    ``gives`` is the documented return type if it differs from that of ``like``.
    """

    def method(facade: Facade[Any], *args: Any, **kwargs: Any) -> Any:
        return call(*inner_and_thread(facade), *args, **kwargs)

    # Not functools.wraps: inspect would follow it to the coroutine function.
    method.__name__, method.__doc__, method.__module__ = (
        like.__name__,
        like.__doc__,
        like.__module__,
    )
    signature = inspect.signature(like)
    if gives is not None:
        signature = signature.replace(return_annotation=gives)
    method.__signature__ = signature  # type: ignore[attr-defined]
    return method


def _class_of(giving: Callable[..., Any] | None) -> object:
    """Return the class itself, or the class of a class method."""
    return getattr(giving, "__self__", giving)


def _given(giving: Callable[[Any, Thread], Any] | None, result: Any, thread: Thread) -> Any:
    return result if giving is None else giving(result, thread)


@overload
def blocking(method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]]) -> Method[A, P, R]: ...


@overload
def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]], giving: Callable[[R, Thread], S]
) -> Method[A, P, S]: ...


def blocking(
    method: Callable[..., Coroutine[Any, Any, Any]],
    giving: Callable[[Any, Thread], Any] | None = None,
) -> Any:
    """Run a coroutine in the client's thread and wait for its result, which ``giving`` converts."""

    def call(inner: Any, thread: Thread, *args: Any, **kwargs: Any) -> Any:
        return _given(giving, thread.call(method(inner, *args, **kwargs)), thread)

    return _method(method, call, _class_of(giving))


@overload
def calling(method: Callable[Concatenate[A, P], R]) -> Method[A, P, R]: ...


@overload
def calling(
    method: Callable[Concatenate[A, P], R], giving: Callable[[R, Thread], S]
) -> Method[A, P, S]: ...


def calling(method: Callable[..., Any], giving: Callable[[Any, Thread], Any] | None = None) -> Any:
    """Call a method that does not wait in the client's thread. Callbacks may call it, too."""

    def call(inner: Any, thread: Thread, *args: Any, **kwargs: Any) -> Any:
        return _given(giving, thread.run(lambda: method(inner, *args, **kwargs)), thread)

    return _method(method, call, _class_of(giving))


def direct(method: Callable[Concatenate[A, P], R]) -> Method[A, P, R]:
    """Call a method that does not use the loop at once, in the caller's thread."""

    def call(inner: Any, _thread: Thread, *args: Any, **kwargs: Any) -> R:
        return method(inner, *args, **kwargs)

    return cast("Method[A, P, R]", _method(method, call))


def closing(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, None] | None],
) -> Method[A, P, None]:
    """Run in the client's thread an operation that the end of the client includes, and wait for it."""

    def call(inner: Any, thread: Thread, *args: Any, **kwargs: Any) -> None:
        async def leave() -> None:
            work = method(inner, *args, **kwargs)
            if work is not None:
                await work

        thread.leave(leave())

    return cast("Method[A, P, None]", _method(method, call))


Receipts = Coroutine[Any, Any, asyncio.Future[R]] | asyncio.Future[R]


def submitting(
    method: Callable[Concatenate[A, P], Receipts[R]],
) -> Method[A, P, concurrent.futures.Future[R]]:
    """Submit a message, and return the future of its receipt, which cannot be cancelled."""

    def call(inner: Any, thread: Thread, *args: Any, **kwargs: Any) -> concurrent.futures.Future[R]:
        async def submit_message() -> concurrent.futures.Future[R]:
            made = method(inner, *args, **kwargs)
            receipt = made if isinstance(made, asyncio.Future) else await made
            result: concurrent.futures.Future[R] = concurrent.futures.Future()
            result.set_running_or_notify_cancel()  # the message cannot be withdrawn
            receipt.add_done_callback(lambda done: _pass_on(done, result))
            return result

        return thread.call(submit_message())

    gives = concurrent.futures.Future[MessageId]
    return cast("Method[A, P, concurrent.futures.Future[R]]", _method(method, call, gives))


def _pass_on(receipt: asyncio.Future[R], result: concurrent.futures.Future[R]) -> None:
    if receipt.cancelled():
        result.set_exception(Closed("the client was closed"))
        return
    error = receipt.exception()
    if error is not None:
        result.set_exception(error)
    else:
        result.set_result(receipt.result())


# ---------------------------------------------------------------- contexts


class Held:
    """An asynchronous context that one task enters and leaves, as task groups require.

    The client ends it at the latest when it closes, because the task was started with ``spawn``.
    """

    def __init__(self, context: AbstractAsyncContextManager[object], spawn: Spawn) -> None:
        self._context = context
        self._spawn = spawn
        self._wants = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._entered: asyncio.Future[None]
        self._left: asyncio.Future[None]

    async def enter(self) -> None:
        """Enter the context in the task. Raises its exception."""
        loop = asyncio.get_running_loop()
        self._entered, self._left = loop.create_future(), loop.create_future()
        self._task = self._spawn(self._live())
        await self._or_cancel(self._entered)

    async def leave(self) -> None:
        """Leave the context in the task. Raises its exception, or the one that ended the task before."""
        self._wants.set()
        if self._task is not None:
            await self._or_cancel(self._left)

    async def _or_cancel(self, step: asyncio.Future[None]) -> None:
        try:
            await asyncio.shield(step)
        except asyncio.CancelledError:
            if self._task is not None:
                self._task.cancel()
            raise

    async def _live(self) -> None:
        try:
            async with self._context:
                self._entered.set_result(None)
                await self._wants.wait()
        except asyncio.CancelledError:
            self._end(Closed("the client was closed"))
            raise
        except BaseException as error:  # noqa: BLE001 - ``enter`` or ``leave`` raises it
            self._end(error)
        else:
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
        for step in (self._entered, self._left):
            if not step.done():
                if error is None:
                    step.set_result(None)
                else:
                    step.set_exception(error)
                    step.exception()  # mark it as retrieved: no caller may wait for it
