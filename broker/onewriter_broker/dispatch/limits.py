"""Every bound of dispatch, with its default. Nothing else lives here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one topic's dispatch may hold, and how long it may take."""

    read_bytes: int = 1024 * 1024
    """Bytes read ahead of a subscription's consumers, about (one entry may be larger)."""
    read_entries: int = 4096
    """Entries read ahead of a subscription's consumers."""
    delivery_bytes: int = 256 * 1024
    """What one subscription delivers before it is another's turn and the socket is looked at."""
    turn_messages: int = 20
    """Shared: messages that one consumer gets before it is the next one's turn."""
    replay_entries: int = 256
    """Shared: entries that one read for redelivery asks for."""
    permits_max: int = 2**31 - 1
    """The highest balance of permits; more flow does not raise it further."""
    consumer_unacknowledged_max: int = 50_000
    """Shared: messages that a consumer may hold unacknowledged; half of it lets it go on."""
    subscription_unacknowledged_max: int = 200_000
    """Shared: the same for all consumers of a subscription together."""
    delayed_max: int = 100_000
    """Shared: entries that wait for their time of delivery; at so many nothing further is read."""
    subscriptions_max: int = 10_000
    """Subscriptions of a topic."""
    consumers_max: int = 1_000
    """Consumers of a subscription."""
    name_bytes_max: int = 512
    """Bytes of a subscription's or a consumer's name."""
    properties_bytes_max: int = 16 * 1024
    """Bytes of a subscription's properties, or of a consumer's metadata, keys and values."""
    ranges_max: int = 200_000
    """Ranges acknowledged one by one above the mark-delete position, in memory. An acknowledgement
    that needs one more is not taken: the entry comes again."""
    ranges_saved_max: int = 1_000
    """How many of them, the lowest, are saved. What is above comes again after a change of hands."""
    partial_bytes_max: int = 1024 * 1024
    """Memory for batches that are acknowledged in part; beyond it a batch counts as not
    acknowledged until all of it is."""
    partial_saved_bytes_max: int = 16 * 1024
    """How much of them, the lowest, is saved."""
    ledger_gaps_max: int = 10_000
    """Borders between ledgers that a topic remembers."""
    save_seconds: float = 0.1
    """An acknowledgement without a receipt is saved so soon after the first unsaved one."""
    save_bytes: int = 1024 * 1024
    """What one save writes, about; the rest follows in the next."""
    save_wait_seconds: float = 20.0
    """How long SUBSCRIBE, SEEK or UNSUBSCRIBE waits for its save before it answers Undecided."""
    receipts_max: int = 100_000
    """Acknowledgements of a topic that wait for their receipt."""
    retry_seconds: float = 0.5
    """Pause before a read or a save that got no definite answer is tried again."""
    unreadable_retry_seconds: float = 10.0
    """Pause before a block that could not be understood is read again."""
    close_seconds: float = 2.0
    """How long closing a topic waits for the last save."""
    seek_linger_seconds: float = 30.0
    """How long a reader's subscription waits for its client to come back after a seek."""
    clock_skew_ms: int = 60_000
    """Seek by time: how far clocks of producers may be ahead of the broker's."""
    rate_seconds: float = 10.0
    """The window of the rates in statistics."""
