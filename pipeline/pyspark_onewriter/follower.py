"""The subscription that follows a stream, so that the brokers keep what it has not read.

It stands where Spark's checkpoint says that a batch is done, or behind that: brokers never move it back,
and nothing else moves it forward. Nothing of a stream's rows depends on it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from onewriter_core.ids import EARLIEST, Position
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.errors import NotFound, PipelineError

log = logging.getLogger("onewriter")


class Follower:
    """Moves one subscription of each log. Without a name it does nothing. Picklable."""

    def __init__(self, access: Access, subscription: str) -> None:
        self._access = access
        self._subscription = subscription
        self._stands: dict[str, Position] | None = None
        self._deleted: set[str] = set()

    def begin(self, positions: Mapping[str, Position]) -> None:
        """The first start of a batch that this process hears of: what is in front of it is done.

        Later ones are passed over: Spark may plan a batch before the checkpoint has the one in front. Makes
        the subscriptions that are not there. Raises PipelineError.
        """
        if self._stands is None and self._subscription:
            self._stands = {}
            self._move(positions)

    def meet(self, logs: Iterable[str]) -> None:
        """These logs are there now; those that have come to be are kept from their beginning. Raises."""
        if self._stands is not None:
            names = list(logs)
            self._deleted.difference_update(names)
            self._move({name: EARLIEST for name in names if name not in self._stands})

    def advance(self, positions: Mapping[str, Position]) -> None:
        """All in front of these positions is done. What fails is made up for by the next call."""
        if not self._subscription:
            return
        self._stands = self._stands or {}
        try:
            self._move(positions)
        except PipelineError as error:
            log.warning("the subscription %s stays where it is: %s", self._subscription, error)

    def _move(self, positions: Mapping[str, Position]) -> None:
        stands = self._stands
        if stands is None:
            return
        ahead = {
            name: position
            for name, position in positions.items()
            if name not in self._deleted and (name not in stands or position > stands[name])
        }
        if not ahead:
            return
        with Broker(self._access) as broker:
            for name, position in ahead.items():
                try:
                    stands[name] = broker.acknowledge(name, self._subscription, position)
                except NotFound:  # checkpoints go on naming what was deleted
                    log.info("%s is not there any more: no subscription follows it", name)
                    stands.pop(name, None)
                    self._deleted.add(name)
