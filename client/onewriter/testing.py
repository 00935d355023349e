"""A real broker for an application's tests, in one ``with`` statement.

::

    from onewriter.testing import running_brokers

    with running_brokers() as brokers:
        client = pulsar.Client(brokers.service_url)

The broker is a process of its own with an embedded Valkey, on free ports and in a temporary folder.
Its package registers itself as an entry point, so that this one does not depend on it:
``pip install 'onewriter[broker,embedded]'``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import metadata
from typing import Protocol, cast

from onewriter_core.errors import ConfigurationError

ENTRY_POINT_GROUP = "onewriter.testing"
ENTRY_POINT_NAME = "brokers"


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
    found = metadata.entry_points(group=ENTRY_POINT_GROUP, name=ENTRY_POINT_NAME)
    for entry_point in found:
        start = cast("_Starter", entry_point.load())
        return start(
            brokers=brokers, manifests=manifests, settings=settings or {}, arguments=arguments
        )
    raise ConfigurationError(
        "onewriter.testing needs the broker: pip install 'onewriter[broker,embedded]'"
    )
