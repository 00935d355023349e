"""Guarded producers and transactions that block."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from onewriter._guard import Guarded as AsyncGuarded
from onewriter._transaction import Transaction as AsyncTransaction
from onewriter.sync._facade import Facade, Reading, blocking, handing_in, leaving
from onewriter.sync._producer import Producer


class Guarded(Facade[AsyncGuarded]):
    """As ``onewriter.Guarded``; for any thread. Made by ``Leadership.guarded`` and ``Ownership``'s."""

    topic: Reading[AsyncGuarded, str] = Reading(lambda it: it.topic)
    is_closed: Reading[AsyncGuarded, bool] = Reading(lambda it: it.is_closed)
    is_atomic: Reading[AsyncGuarded, bool | None] = Reading(lambda it: it.is_atomic)

    send = blocking(AsyncGuarded.send)
    submit = handing_in(AsyncGuarded.submit)
    seal = blocking(AsyncGuarded.seal)
    producer = blocking(AsyncGuarded.producer, Producer)
    close = leaving(AsyncGuarded.close)


class Transaction(Facade[AsyncTransaction]):
    """As ``onewriter.Transaction``, in a ``with`` statement. Made by ``Leadership.transaction``."""

    send = handing_in(AsyncTransaction.send)
    commit = blocking(AsyncTransaction.commit)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        work = self._inner.__aexit__(kind, error, traceback)
        if error is None:
            self._thread.call(work)
        else:
            self._thread.leave(work)
