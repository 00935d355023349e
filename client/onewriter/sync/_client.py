"""The client whose calls block. It runs its event loop in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from onewriter._client import Client as AsyncClient
from onewriter._config import Limits, Tls, TokenSource
from onewriter._produce.producer import Producer as AsyncProducer
from onewriter._produce.tenure import ProducerOptions
from onewriter.sync._contexts import Context
from onewriter.sync._facade import blocking, calling
from onewriter.sync._leadership import Lead
from onewriter.sync._own import Own
from onewriter.sync._producer import Producer
from onewriter.sync._source import Consumer, Reader
from onewriter.sync._thread import Thread

Changed = Callable[[Producer], None]


class Client(Context[AsyncClient]):
    """As ``onewriter.Client``, in a ``with`` statement. Any thread may leave the statement."""

    def __init__(
        self,
        service_url: str,
        *,
        token: str | Path | TokenSource | None = None,
        tls: Tls | None = None,
        limits: Limits | None = None,
        version: str = "onewriter-python",
    ) -> None:
        client = AsyncClient(service_url, token=token, tls=tls, limits=limits, version=version)
        super().__init__(client, Thread(client))

    def _enter(self) -> None:
        self._thread.start()

    def _leave(self, _error: BaseException | None) -> None:
        self._thread.stop()

    def start_producer(
        self,
        topic: str,
        options: ProducerOptions | None = None,
        *,
        on_change: Changed | None = None,
    ) -> Producer:
        """Start a producer without waiting; see ``onewriter.Client.start_producer``.

        ``on_change`` is called in the client's thread whenever the producer's state or trouble changes.
        """
        converted = self._converted(on_change)
        made = self._thread.run(
            lambda: self._inner.start_producer(topic, options, on_change=converted)
        )
        return Producer(made, self._thread)

    def create_producer(
        self,
        topic: str,
        options: ProducerOptions | None = None,
        *,
        timeout_seconds: float | None = None,
        on_change: Changed | None = None,
    ) -> Producer:
        """Create a producer that may write; see ``onewriter.Client.create_producer``.

        ``on_change`` is called in the client's thread whenever the producer's state or trouble changes.
        """
        made = self._inner.create_producer(
            topic, options, timeout_seconds=timeout_seconds, on_change=self._converted(on_change)
        )
        return Producer(self._thread.call(made), self._thread)

    def _converted(self, on_change: Changed | None) -> Callable[[AsyncProducer], None]:
        def converted(producer: AsyncProducer) -> None:
            if on_change is not None:
                on_change(Producer(producer, self._thread))

        return converted

    subscribe = blocking(AsyncClient.subscribe, Consumer)
    create_reader = blocking(AsyncClient.create_reader, Reader)
    check = blocking(AsyncClient.check)
    partitions_of = blocking(AsyncClient.partitions_of)
    leader = blocking(AsyncClient.leader)
    lead = calling(AsyncClient.lead, Lead)
    own = calling(AsyncClient.own, Own)
