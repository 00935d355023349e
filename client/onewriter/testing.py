"""A real broker for an application's tests: inside the test's process, or as processes of its own.

**Inside**, in a twentieth of a second, with takeovers, partitions and failovers on command::

    async def test_a_fenced_writer_stops(onewriter_broker):    # a pytest fixture, there when installed
        async with onewriter.Client(onewriter_broker.service_url) as client:
            async with client.lead("orders") as leadership:
                onewriter_broker.fence("orders")
                ...

``in_process_broker()`` is the same in a ``with`` statement. It keeps everything in memory.

**Processes**, to be killed and frozen, with a store on disk:

::

    from onewriter.testing import running_brokers

    with running_brokers() as brokers:
        client = pulsar.Client(brokers.service_url)

Each broker is a process of its own with an embedded Valkey, on free ports and in a temporary folder.

The broker's package registers itself as an entry point, so that this one does not depend on it:
``pip install 'onewriter[broker,embedded]'``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import metadata
from typing import Protocol, cast

from onewriter_core.errors import ConfigurationError

ENTRY_POINT_GROUP = "onewriter.testing"
ENTRY_POINT_NAME = "brokers"
IN_PROCESS_NAME = "in_process"


class RunningBrokers(Protocol):
    """Brokers that were started for a test, numbered from 0."""

    @property
    def service_url(self) -> str:
        """For Pulsar clients: all brokers in one URL."""
        ...

    @property
    def http_url(self) -> str:
        """The first broker's HTTP interface."""
        ...

    def pid(self, number: int = 0) -> int:
        """The process id of a broker as it runs now."""
        ...

    def kill(self, number: int = 0) -> int:
        """SIGKILL a broker, which is then started again; the process id that it had."""
        ...

    def freeze(self, number: int = 0) -> int:
        """SIGSTOP a broker: it answers nobody until ``thaw``, or until its supervisor kills it."""
        ...

    def thaw(self, process_id: int) -> None:
        """SIGCONT a process that was frozen, unless it is gone."""
        ...

    def wait_ready(self, *numbers: int) -> None:
        """Wait until these brokers, or all of them, serve again."""
        ...

    def log(self) -> str:
        """All that the brokers have said."""
        ...


class InProcessBroker(Protocol):
    """A broker in this process. Methods return when it is done, and may be called from any thread."""

    @property
    def service_url(self) -> str:
        """For Pulsar clients."""
        ...

    @property
    def http_url(self) -> str:
        """The broker's HTTP interface."""
        ...

    def fence(self, topic: str) -> int:
        """Depose whoever writes; the next in line leads. Answers the epoch that ends all before it."""
        ...

    def hand_over(self, topic: str) -> int:
        """Give the topic to the first in line, without a gap; its epoch. Unavailable: nobody waits."""
        ...

    def partition(self, topic: str = "") -> None:
        """Cut the network to whoever writes or waits for a topic, or to everybody.

        Both sides believe their connections to live, until they notice the silence: the broker after
        2.5 s at the defaults (then the next in line leads), this SDK after 5 s. Whoever of a topic
        connects anew comes through; where everybody is cut off, nobody does. Raises Unavailable when
        nobody writes the topic or waits for it.
        """
        ...

    def heal(self) -> None:
        """End all partitions: what was under way arrives."""
        ...

    def lag(self) -> None:
        """From now on the store's replica gets nothing: a failover loses what is written meanwhile."""
        ...

    def fail_over(self) -> None:
        """The store's replica, as far as it came, takes the primary's place; returns when served again.

        Epochs stay, and holders with them, unless the replica lagged behind the grant itself.
        """
        ...


class _InProcessStarter(Protocol):
    def __call__(
        self, *, manifests: str, settings: Mapping[str, object]
    ) -> AbstractContextManager[InProcessBroker]: ...


class _Starter(Protocol):
    def __call__(
        self,
        *,
        brokers: int,
        manifests: str,
        settings: Mapping[str, object],
        arguments: Sequence[str],
    ) -> AbstractContextManager[RunningBrokers]: ...


def running_brokers(
    *,
    brokers: int = 1,
    manifests: str = "",
    settings: Mapping[str, object] | None = None,
    arguments: Sequence[str] = (),
) -> AbstractContextManager[RunningBrokers]:
    """Start brokers and stop them at the end of the ``with`` statement.

    ``manifests`` is the YAML text of topics and claims; ``settings`` are the broker's, by name (as
    in ``ONEWRITER_PORT``, in small letters without the prefix); ``arguments`` are more options of
    ``onewriter up``. Raises ConfigurationError when the broker is not installed.
    """
    start = cast("_Starter", _registered(ENTRY_POINT_NAME))
    return start(brokers=brokers, manifests=manifests, settings=settings or {}, arguments=arguments)


def in_process_broker(
    *, manifests: str = "", settings: Mapping[str, object] | None = None
) -> AbstractContextManager[InProcessBroker]:
    """Start a broker in this process, in a thread of its own; it ends with the ``with`` statement.

    ``manifests`` and ``settings`` as for ``running_brokers``. Raises ConfigurationError when the
    broker is not installed.
    """
    start = cast("_InProcessStarter", _registered(IN_PROCESS_NAME))
    return start(manifests=manifests, settings=settings or {})


def _registered(name: str) -> Callable[..., object]:
    for entry_point in metadata.entry_points(group=ENTRY_POINT_GROUP, name=name):
        return cast("Callable[..., object]", entry_point.load())
    raise ConfigurationError(
        "onewriter.testing needs the broker: pip install 'onewriter[broker,embedded]'"
    )
