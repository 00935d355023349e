"""The cost of the brokers' anchor in Kubernetes: CPU of the API server and etcd for each read and each write.

A real API server with its etcd and one client, which reads and writes a full object one request after the other.
The figures are parameters of bench/scale_simulation.py.

By hand: ``python -m bench.anchor_costs`` (needs what ``make test-all`` needs for a control plane).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from bench.machine import describe_machine, process_usage
from bench.operator_scale import CRDS
from tests.cluster.accounts import broker_account
from tests.cluster.control_plane import ControlPlane

from onewriter_broker.anchor.api import Addresses, Record
from onewriter_broker.anchor.kubernetes import KubernetesAnchor
from onewriter_broker.kubernetes_api import ApiServer, KubernetesApi
from onewriter_core.api.anchor import BUCKETS_PER_OBJECT_MAX

ROUNDS = 100


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one request: elapsed time, CPU of API server and etcd, CPU of the broker; in milliseconds."""

    elapsed_ms: float
    server_cpu_ms: float
    broker_cpu_ms: float

    def line(self, what: str) -> str:
        """The figures for people."""
        return (
            f"{what}: {self.elapsed_ms:.1f} ms; CPU of API server and etcd {self.server_cpu_ms:.1f} ms,"
            f" of the broker {self.broker_cpu_ms:.1f} ms"
        )


def _record(bucket: int) -> Record:
    host = f"onewriter-broker-{bucket % 256}.onewriter-brokers.onewriter.svc.cluster.local"
    return Record(
        generation=3,
        replid="a" * 40,
        past_replids=("b" * 40, "c" * 40),
        owner=f"onewriter-broker-{bucket % 256}~0123456789abcdef",
        addresses=Addresses(f"pulsar+ssl://{host}:6651", f"https://{host}:8443"),
        ledger_high_water=100_000,
        last_ledger=99_990,
        known_since=2,
    )


def _cpu_seconds() -> tuple[float, float]:
    """CPU time so far of this process, and of the processes that it started."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    here = own.ru_utime + own.ru_stime
    return here, process_usage([os.getpid()]).cpu_seconds - here


async def _cost(rounds: int, request: Callable[[], Awaitable[object]]) -> Cost:
    began, (here, servers) = time.monotonic(), _cpu_seconds()
    for _ in range(rounds):
        await request()
    elapsed, (here_now, servers_now) = time.monotonic() - began, _cpu_seconds()
    spent = (elapsed, servers_now - servers, here_now - here)
    return Cost(*(1e3 * seconds / rounds for seconds in spent))


async def _measure(server: ApiServer, buckets: int, rounds: int) -> tuple[Cost, Cost, int]:
    """The costs of a read and of a write of a full object, and the bytes of its document."""
    api = KubernetesApi(server)
    try:
        anchor = KubernetesAnchor(api, "shard-0")
        versions = await asyncio.gather(
            *(anchor.compare_and_set(bucket, 0, _record(bucket)) for bucket in range(buckets))
        )
        if versions != [1] * buckets:
            raise RuntimeError(f"{buckets - versions.count(1)} records were not written")
        version = 1

        async def write() -> None:
            nonlocal version
            written = await anchor.compare_and_set(0, version, _record(0))
            if written is None:
                raise RuntimeError("another process changes the records")
            version = written

        reading = await _cost(rounds, lambda: anchor.read(0))
        writing = await _cost(rounds, write)
        path = f"/apis/onewriter.dev/v1alpha1/namespaces/{server.namespace}/bucketanchors/shard-0"
        document = (await api.get(path)).document
        return reading, writing, len(json.dumps(document, separators=(",", ":")))
    finally:
        await api.close()


def main() -> None:
    """Measure reads and writes of the brokers' anchor on a real API server."""
    parser = argparse.ArgumentParser(prog="python -m bench.anchor_costs", description=main.__doc__)
    parser.add_argument("--buckets", type=int, default=BUCKETS_PER_OBJECT_MAX)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    print(describe_machine())
    with tempfile.TemporaryDirectory(prefix="onewriter-") as folder:
        directory = Path(folder)
        with ControlPlane(directory) as cluster:
            cluster.establish(*CRDS)
            namespace = cluster.make_namespace("anchor-costs")
            server = broker_account(cluster, namespace, directory)
            reading, writing, size = asyncio.run(
                _measure(server, arguments.buckets, arguments.rounds)
            )
    print(f"{arguments.buckets:,} records: {size:,} bytes of JSON")
    print(reading.line("read"))
    print(writing.line("write"))


if __name__ == "__main__":
    main()
