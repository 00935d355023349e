"""Ownership of resources, with calls that block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from onewriter._errors import OnewriterError
from onewriter._own.own import Own as AsyncOwn
from onewriter._own.own import Ownership as AsyncOwnership
from onewriter._own.own import Ownerships as AsyncOwnerships
from onewriter._produce.guarded import GuardedBy
from onewriter.sync._contexts import Context, Opening
from onewriter.sync._facade import (
    Facade,
    Reading,
    blocking,
    calling,
    closing,
    direct,
    inner_and_thread,
)
from onewriter.sync._leadership import Loss
from onewriter.sync._producer import Guarded
from onewriter.sync._source import Consumer
from onewriter.sync._thread import Thread


class Ownership(Facade[AsyncOwnership]):
    """As ``onewriter.Ownership``, for any thread: one resource, owned until ``lost``."""

    resource: Reading[AsyncOwnership, str] = Reading(lambda it: it.resource)
    group: Reading[AsyncOwnership, str] = Reading(lambda it: it.group)
    generation: Reading[AsyncOwnership, int] = Reading(lambda it: it.generation)
    known_generation: Reading[AsyncOwnership, int] = Reading(lambda it: it.known_generation)
    is_owned: Reading[AsyncOwnership, bool] = Reading(lambda it: it.is_owned)
    is_attached: Reading[AsyncOwnership, bool] = Reading(lambda it: it.is_attached)
    end: Reading[AsyncOwnership, OnewriterError | None] = Reading(lambda it: it.end)
    guard: Reading[AsyncOwnership, GuardedBy] = Reading(lambda it: it.guard)
    serve_until: Reading[AsyncOwnership, float] = Reading(lambda it: it.serve_until)

    def __init__(self, inner: AsyncOwnership, thread: Thread) -> None:
        super().__init__(inner, thread)
        self.lost = Loss(inner.lost, thread)

    when_ended = calling(AsyncOwnership.when_ended)
    check_held = direct(AsyncOwnership.check_held)
    check = blocking(AsyncOwnership.check)
    may_serve = direct(AsyncOwnership.may_serve)
    guarded = calling(AsyncOwnership.guarded, Guarded)
    consumer_options = direct(AsyncOwnership.consumer_options)
    subscribe = blocking(AsyncOwnership.subscribe, Consumer)
    release = closing(AsyncOwnership.release)


class Ownerships(Context[AsyncOwnerships], Sequence[Ownership]):
    """The ownerships of one call of ``Client.own``, in its order. Leaving the block releases them."""

    is_over: Reading[AsyncOwnerships, bool] = Reading(lambda it: it.is_over)
    serving_until: Reading[AsyncOwnerships, float] = Reading(lambda it: it.serving_until)

    def __init__(self, inner: AsyncOwnerships, thread: Thread) -> None:
        super().__init__(inner, thread)
        self._all = [Ownership(each, thread) for each in inner]

    @overload
    def __getitem__(self, index: int) -> Ownership: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Ownership]: ...

    def __getitem__(self, index: int | slice) -> Ownership | Sequence[Ownership]:
        return self._all[index]

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Ownership]:
        return iter(self._all)

    def release(self, these: Sequence[Ownership] | None = None) -> None:
        """Release these ownerships (default: all). Idempotent.

        A broker that cannot be reached releases them when it detects the loss of the connection.
        """
        given = None if these is None else [inner_and_thread(each)[0] for each in these]
        self._thread.leave(self._inner.release(given))

    def _leave(self, _error: BaseException | None) -> None:
        self.release()


class Own(Opening[AsyncOwn, Ownerships]):
    """The result of ``Client.own``: enter it in a ``with`` statement, or call ``wait``."""

    def _sibling_of(self, opened: AsyncOwnerships) -> Ownerships:
        return Ownerships(opened, self._thread)

    def wait(self) -> Ownerships:
        """Send the requests and wait for the answers, as ``await`` does for ``onewriter.Own``."""
        return self.__enter__()
