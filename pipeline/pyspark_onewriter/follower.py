"""The durable subscription that follows a stream, so that brokers keep the entries that the stream has not read.

It is at the end of a batch that is done according to Spark's checkpoint, or before it. Brokers never move it back,
and only this module moves it forward. The rows of a stream do not depend on it.
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
    """Moves one subscription of each log. Without a name it does nothing. Can be pickled."""

    def __init__(self, access: Access, subscription: str) -> None:
        self._access = access
        self._subscription = subscription
        self._stands: dict[str, Position] | None = None
        self._deleted: set[str] = set()

    def begin(self, positions: Mapping[str, Position]) -> None:
        """The beginning of the first batch of this process: everything before it is done.

        Later calls do nothing, because Spark may plan a batch before the checkpoint has the previous one. Creates
        missing subscriptions. Raises PipelineError.
        """
        if self._stands is None and self._subscription:
            self._stands = {}
            self._move(positions)

    def meet(self, logs: Iterable[str]) -> None:
        """Note the existing logs. New logs are kept from their beginning. Raises PipelineError."""
        if self._stands is not None:
            names = list(logs)
            self._deleted.difference_update(names)
            self._move({name: EARLIEST for name in names if name not in self._stands})

    def advance(self, positions: Mapping[str, Position]) -> None:
        """Everything before these positions is done. If this fails, the next call makes up for it."""
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
                except NotFound:  # checkpoints keep the names of deleted topics
                    log.info("%s does not exist any more; no subscription follows it", name)
                    stands.pop(name, None)
                    self._deleted.add(name)
