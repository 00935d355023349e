"""Every limit of dispatch, with its default."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The memory and time of one topic's dispatch."""

    read_bytes: int = 1024 * 1024
    """Approximate bytes read ahead of a subscription's consumers (one entry may be larger)."""
    read_entries: int = 4096
    """Entries read ahead of a subscription's consumers."""
    delivery_bytes: int = 256 * 1024
    """Bytes that one subscription delivers in a round before the next subscription and the socket's state are
    considered."""
    turn_messages: int = 20
    """Shared: messages that one consumer gets before the next consumer."""
    replay_entries: int = 256
    """Shared: entries that one read for redelivery asks for."""
    permits_max: int = 2**31 - 1
    """The highest balance of permits."""
    consumer_unacknowledged_max: int = 50_000
    """Shared: messages that a consumer may hold unacknowledged. It continues to receive at half of it."""
    subscription_unacknowledged_max: int = 200_000
    """Shared: the same for all consumers of a subscription together."""
    delayed_max: int = 100_000
    """Shared: entries that wait for their time of delivery. At this number, nothing further is read."""
    subscriptions_max: int = 10_000
    """Subscriptions of a topic."""
    consumers_max: int = 1_000
    """Consumers of a subscription."""
    name_bytes_max: int = 512
    """Bytes of a subscription's or a consumer's name."""
    properties_bytes_max: int = 16 * 1024
    """Bytes of a subscription's properties, or of a consumer's metadata, keys and values."""
    ranges_max: int = 200_000
    """Ranges of individually acknowledged entries above the mark-delete position, in memory. An
    acknowledgement that needs one more is dropped, so the entry is delivered again."""
    ranges_saved_max: int = 1_000
    """Ranges that are saved, lowest first. Entries of the other ranges are delivered again after a transition
    to another broker."""
    partial_bytes_max: int = 1024 * 1024
    """Memory for batches that are acknowledged in part. Beyond it, a batch counts as unacknowledged until all
    of it is acknowledged."""
    partial_saved_bytes_max: int = 16 * 1024
    """Bytes of these batches that are saved, lowest first."""
    ledger_gaps_max: int = 10_000
    """Borders between ledgers that a topic remembers."""
    save_seconds: float = 0.1
    """Delay until an acknowledgement without a receipt is saved."""
    save_bytes: int = 1024 * 1024
    """Approximate bytes of one save; the rest follows in the next."""
    save_wait_seconds: float = 20.0
    """Time that SUBSCRIBE, SEEK or UNSUBSCRIBE waits for its save before it answers Undecided."""
    receipts_max: int = 100_000
    """Acknowledgements of a topic that wait for their receipt."""
    retry_seconds: float = 0.5
    """Pause before a read or a save without a definite answer is retried."""
    unreadable_retry_seconds: float = 10.0
    """Pause before an unreadable block is read again."""
    close_seconds: float = 2.0
    """Time that closing a topic waits for the last save."""
    seek_linger_seconds: float = 30.0
    """Time that a reader's subscription waits for its client to return after a seek."""
    clock_skew_ms: int = 60_000
    """Seek by time: how far the clocks of producers may be ahead of the broker's clock."""
    rate_seconds: float = 10.0
    """The window of the rates in statistics."""
