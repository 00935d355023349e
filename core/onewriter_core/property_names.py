"""Names of the properties by which producers, consumers and messages carry what Pulsar's commands have no field for.

Every stock client can set properties. docs/wire.md describes them.
"""

from __future__ import annotations

from typing import Final

# Of a producer.

IF_EPOCH_PROPERTY: Final = "onewriter.if-epoch"
"""A takeover succeeds only while the topic epoch equals this number."""

ACCESS_MODE_PROPERTY: Final = "onewriter.access-mode"
"""``ExclusiveWithFencing``, for clients that have no such access mode (Go)."""

HOST_PROPERTY: Final = "onewriter.host"
"""The machine that the producer runs on, for the policy Balanced. The node of its pod takes precedence."""

SERVE_SECONDS_PROPERTY: Final = "onewriter.serve-seconds"
"""Seconds for which the producer may act in the topic's name after each successful CHECK."""

PRIORITY_PROPERTY: Final = "onewriter.queue-priority"
"""The queue priority of PIP-440."""

IDENTITY_PROPERTY: Final = "onewriter.identity"
"""Who waits or leads, for people who read the queue."""

GUARD_PROPERTY: Final = "onewriter.guard"
"""The topic or the resource that the producer's writes depend on."""

GUARD_NUMBER_PROPERTY: Final = "onewriter.guard-number"
"""The topic epoch or the generation that the writes depend on."""

GUARD_GROUP_PROPERTY: Final = "onewriter.guard-group"
"""The guard is an ownership in this group; the group may be empty."""

# Of a consumer.

GENERATION_PROPERTY: Final = "onewriter.own-generation"
"""The generation under which the consumer reads for a group that owns the topic."""

NONCE_PROPERTY: Final = "onewriter.own-nonce"
"""The owner's nonce, for a consumer on another connection than the owner's."""

# Of a message.

LEADER_KEY: Final = "onewriter.leader"
"""The key of the message in which a leader announces itself."""

KIND_PROPERTY: Final = "onewriter.kind"
"""``leader`` in a leader's announcement."""

EPOCH_PROPERTY: Final = "onewriter.epoch"
"""The topic epoch in a leader's announcement."""

STAMP_PROPERTY: Final = "onewriter.write"
"""The stamp of a write of shared state: writer and number."""
