"""An application hangs while its client answers pings: only a progress deadline tells."""

from __future__ import annotations

import time

from tests.integration.conftest import RawClients
from tests.integration.raw import EXCLUSIVE

from onewriter_broker.testing import running_brokers

MANIFEST = """
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: watched}
spec: {access: {requireClaim: false}, detection: {progressDeadlineSeconds: 1}}
"""


def test_a_holder_that_stops_publishing_hands_over_where_that_was_asked_for(
    raw: RawClients,
) -> None:
    with running_brokers(manifests=MANIFEST) as brokers:
        connection = raw(brokers.address())
        holder = connection.producer("watched", EXCLUSIVE)
        elsewhere = connection.producer("unwatched", EXCLUSIVE)
        waiter = raw(brokers.address()).waiter("watched")
        until = time.monotonic() + 2.5
        while time.monotonic() < until:  # who publishes keeps its turn
            holder.publish(b"progress")
            time.sleep(0.1)
        assert not waiter.is_ready
        waiter.ready_at_last().publish(b"mine now")
        holder.closed_by_broker()
        elsewhere.publish(b"no deadline here")
        moved = brokers.events("topic.transition")[-1]
        assert moved["cause"] == "ProgressDeadline"
