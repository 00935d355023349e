"""Guarded producers and transactions that block."""

from __future__ import annotations

from onewriter._lead.transaction import Transaction as AsyncTransaction
from onewriter._produce.guarded import Guarded as AsyncGuarded
from onewriter.sync._contexts import Context
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


class Transaction(Context[AsyncTransaction]):
    """As ``onewriter.Transaction``, in a ``with`` statement. Made by ``Leadership.transaction``."""

    send = handing_in(AsyncTransaction.send)
    commit = blocking(AsyncTransaction.commit)

    def _leave(self, error: BaseException | None) -> None:
        if error is None:
            self._thread.call(self._inner.__aexit__(None, None, None))
        else:
            self._thread.leave(self._inner.__aexit__(type(error), error, error.__traceback__))
