"""A guard refused a block: the log goes on as if that block had never been formed.

Only for blocks whose one and only attempt was answered (STALE, AHEAD, and HELD behind these): no copy
of them is under way, so their positions can be given to others.
"""

from __future__ import annotations

from collections.abc import Sequence

from onewriter_broker.log.store.api import Outcome
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.log.topic_log.pending_blocks import PendingBlock


def fall_back(
    topic_log: TopicLog, refused: PendingBlock, held: Sequence[PendingBlock], outcome: Outcome
) -> None:
    """``held`` were held back behind ``refused``; none of them is in the log.

    Numbers and chain go on in front of it, so the log has no gap; what was held waits again, in
    front of all. Whoever is refused is refused as a whole, with what he handed in behind: the guard
    may hold again by then, and a gap in what one sender sent would be a loss. An atomic publish is
    refused with its first block, because its version is known; only its own blocks are behind that.
    """
    for pending in reversed(held):
        _take_back(topic_log, pending)
        if pending.publish is None:
            topic_log.waiting[:0] = pending.entries
    _take_back(topic_log, refused)
    if refused.publish is not None:
        refused.publish.duplicate()
        return
    senders = {sender: topic_log.guarded.get(sender) for sender, _, _ in refused.entries}
    behind = [entry for entry in topic_log.waiting if entry[0] in senders]
    topic_log.waiting = [entry for entry in topic_log.waiting if entry[0] not in senders]
    for sender, guarded in senders.items():
        own = [entry for entry in (*refused.entries, *behind) if entry[0] is sender]
        size = sum(len(payload) for _, _, payload in own)
        if guarded is not None:
            guarded.guard_refused(len(own), size, outcome)


def withdraw(topic_log: TopicLog, pending: PendingBlock, outcome: Outcome) -> None:
    """A block was not stored, because another one of those that it belongs together with was not."""
    _take_back(topic_log, pending)
    if pending.together is not None:
        pending.together.refused_by_store(outcome)
    for sender, _, payload in pending.entries:
        sender.refused(len(payload))


def _take_back(topic_log: TopicLog, pending: PendingBlock) -> None:
    """Undo what forming the log's last block did."""
    topic_log.undecided.remove(pending)
    topic_log.next_entry = pending.block.position.entry
    topic_log.chain = pending.chain_before
    counts = pending.block.counts
    messages = len(pending.entries) if counts is None else sum(counts)
    topic_log.ledger_bytes -= pending.size
    topic_log.ledger_entries -= len(pending.entries)
    topic_log.entries_in -= len(pending.entries)
    topic_log.messages_in -= messages
    topic_log.bytes_in -= pending.size
    topic_log.blocks_in -= 1
