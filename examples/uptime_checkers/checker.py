"""One host of PIP-440's uptime checkers: it probes the endpoints whose topic it leads.

M hosts check N endpoints, each endpoint by one host at a time: the exclusive producer of the
endpoint's topic. A host requests every endpoint and waits in all queues. It uses only the stock
Pulsar client; two producer properties add what this client cannot express: the priority of the host
for an endpoint (``onewriter.queue-priority``) and the name of the host (``onewriter.host``; in
Kubernetes the brokers know the pod's node).

The promotion policy of the topics decides which host takes over from a dead one::

    chosen      priorities computed beforehand, so that a dead host's endpoints spread evenly
    balanced    one priority for all; the brokers choose the host that leads the fewest topics (policy: Balanced)

Standbys have the lowest priority in both cases: they get nothing while another host is alive.
"""

from __future__ import annotations

import argparse
import json
import threading
import time

import pulsar

WAIT_FOR_EVER_SECONDS = 2**31 - 1
"""The C++ client underneath gives up a waiting producer after its operation time-out."""

PRIORITY_STANDBY = 1
PRIORITY_OF_ALL = 100


def topic_of(endpoint: int) -> str:
    return f"persistent://public/default/check-{endpoint}"


def chosen_priority(host: int, hosts: int, endpoint: int) -> int:
    """Higher is sooner: the endpoint's own host, then the others in an order of that endpoint's.

    Endpoints ``host``, ``host + hosts``, ... belong to a host. Each of them has another one of the
    others as its successor, in turn: so what a host leaves is spread over all that are left.
    """
    behind_owner = (host - endpoint) % hosts
    if behind_owner == 0:
        return PRIORITY_OF_ALL
    others = hosts - 1
    place = (behind_owner - 1 - endpoint // hosts) % others
    return PRIORITY_OF_ALL - 1 - place


def check_for_ever(
    client: pulsar.Client, endpoint: int, host: str, priority: int, interval: float
) -> None:
    """Wait for the endpoint, check it until another host is its checker, wait again."""
    while True:
        producer = client.create_producer(
            topic_of(endpoint),
            access_mode=pulsar.ProducerAccessMode.WaitForExclusive,
            properties={"onewriter.queue-priority": str(priority), "onewriter.host": host},
        )
        try:
            while True:
                now_ms = time.time_ns() // 1_000_000
                result = {"endpoint": endpoint, "host": host, "is_up": True, "at_ms": now_ms}
                producer.send(json.dumps(result).encode())
                time.sleep(interval)
        except pulsar.ProducerFenced:
            print(f"{host}: endpoint {endpoint} has another checker now", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="pulsar://127.0.0.1:6650")
    parser.add_argument("--name", required=True, help="of this host")
    parser.add_argument("--number", type=int, default=0, help="of this host, from 0")
    parser.add_argument("--hosts", type=int, default=4, help="how many there are")
    parser.add_argument("--endpoints", type=int, default=12)
    parser.add_argument("--priorities", choices=["chosen", "balanced"], default="balanced")
    parser.add_argument("--standby", action="store_true", help="only when no other host is left")
    parser.add_argument("--interval", type=float, default=0.5, help="seconds between two checks")
    options = parser.parse_args()

    client = pulsar.Client(
        options.url,
        operation_timeout_seconds=WAIT_FOR_EVER_SECONDS,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    for endpoint in range(options.endpoints):
        if options.standby:
            priority = PRIORITY_STANDBY
        elif options.priorities == "chosen":
            priority = chosen_priority(options.number, options.hosts, endpoint)
        else:
            priority = PRIORITY_OF_ALL
        threading.Thread(
            target=check_for_ever,
            args=(client, endpoint, options.name, priority, options.interval),
            daemon=True,
        ).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
