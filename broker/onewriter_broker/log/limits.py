"""The limits of a broker's logs and of its appends: one value that the composition root passes to all of them."""

from __future__ import annotations

from dataclasses import dataclass

from onewriter_core.log_format.limits import BLOCK_ENTRIES_MAX, CALL_BYTES_MAX

FLOORS_MAX = 500
"""Guards of other buckets that one topic remembers the highest numbers of. Each fence writes them."""

FLOORS_PER_SUBJECT_MAX = 400
"""The same for one subject: the one that was admitted first to write under the guard."""

APPS_MAX = 500
"""Apps that publish to one log atomically. The log remembers the version of each for ever: if it forgot
one, a repeated request would publish the app's last batch again."""

APPS_PER_SUBJECT_MAX = 32
"""Of these names, those that are bound to one authenticated subject."""

PROOF_SECONDS_MAX = 3.0
"""Time until a proof ends with Undecided, also while the store does not answer."""

PROOFS_MAX = 10_000
"""Proofs that may wait at the same time."""


@dataclass(frozen=True, slots=True)
class LogLimits:
    """See the constants. Tests pass smaller ones."""

    floors_max: int = FLOORS_MAX
    floors_per_subject_max: int = FLOORS_PER_SUBJECT_MAX
    apps_max: int = APPS_MAX
    apps_per_subject_max: int = APPS_PER_SUBJECT_MAX
    proofs_max: int = PROOFS_MAX
    proof_seconds_max: float = PROOF_SECONDS_MAX
    call_bytes_max: int = CALL_BYTES_MAX
    """Bytes of blocks after which a call takes no further block."""
    publish_block_entries_max: int = BLOCK_ENTRIES_MAX
    """Entries in one block of an atomic publish."""
