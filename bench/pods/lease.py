"""A candidate for a Lease: client-go's algorithm and constants, as the operator's election has them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import uuid
from datetime import UTC, datetime
from typing import Any

from bench.pods.notes import Notes, arguments

from onewriter_core.kubernetes.kinds import LEASE, Key
from onewriter_operator.election import Election, Timing
from onewriter_operator.kube import Kube, load_configuration

TIMING = Timing(duration_seconds=15.0, renew_seconds=10.0, retry_seconds=2.0)
"""client-go's LeaseDuration, RenewDeadline and RetryPeriod; its jitter of 1.2 is the election's own."""


async def compete(name: str, namespace: str, pace_seconds: float, notes: Notes) -> None:
    """Wait for the Lease, then write at a pace until it is lost or the pod leaves."""
    # Of this process alone, as controller-runtime's: one that was killed is not taken for its heir.
    identity = f"{socket.gethostname()}_{uuid.uuid4()}"

    async def write() -> None:
        while True:
            notes.add("appended")
            await asyncio.sleep(pace_seconds)

    async with Kube(await load_configuration(None)) as kube:
        lease = Key(LEASE.kind, namespace, name)
        election = Election(kube, lease, identity, TIMING, _wall_clock)
        notes.add("asking")
        await election.win()
        notes.add("granted")
        leading: asyncio.Future[Any] = asyncio.gather(election.keep(), write())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leading.cancel)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await leading
        finally:
            await election.give_back()  # client-go's ReleaseOnCancel


def _wall_clock() -> float:
    """For what people read in the Lease; nothing is measured with it."""
    return datetime.now(UTC).timestamp()


def main() -> None:
    """Compete for a Lease."""
    given = arguments(main.__doc__).parse_args()
    with Notes(given.notes) as notes:
        asyncio.run(compete(given.contest, given.namespace, given.pace_seconds, notes))


if __name__ == "__main__":
    main()
