"""Finds the positions of the messages in batches.

A batch is a sequence of messages. A message is the size of its metadata (4 bytes), the metadata (which includes the
size of the content), and the content. So a message begins where the previous one ends, and the positions could be found
one after the other only. Two methods find many of them at once:

* **Walking** visits all batches in parallel. In each round it assumes that the next messages of a batch have the size
  of the previous one, checks all of them at once, and continues after the first one with another size.
* **Searching** finds candidates, positions where a message may begin: two zero bytes (metadata is smaller than
  64 KiB) and, after the size, the tag of a known field. From each candidate it computes where the next message
  would begin. The messages are the candidates that are reached from the beginning of the batch, if their number is right.

Large messages are walked for a few rounds. Small ones too, if that succeeds for a sample of the batches. The other
batches are searched. If searching fails too, for example because contents were made to mislead it, the batch is walked to
its end.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

import numpy as np

from onewriter_pipeline.binaries import Bools, Signed, Unsigned
from onewriter_pipeline.decode.fields import Fields, WantedFields, scan
from onewriter_pipeline.decode.words import big_endian_32, varints

MESSAGE_BYTES_MIN: Final = 6
"""Minimal size of a message in a batch: the size of its metadata, and the size of its content in the metadata."""

BATCH_MESSAGES_MAX: Final = 1024 * 1024
"""Messages of one entry. An entry with more counts as damaged, because its rows would take too much memory."""

_SIZE_BYTES: Final = 4
"""Length of the number that contains the size of a message's metadata."""

_GUESS_FACTOR: Final = 2
_BYTE: Final = np.uint64(0xFF)
_WALKED_FIRST_BYTES_MIN: Final = 256
"""Average size from which messages are walked first, without a sample, because searching reads every byte."""

_SAMPLED_BATCHES: Final = 4
"""Batches of small messages that are walked first. If that succeeds, the others are walked too."""

_FIRST_ROUNDS: Final = 6
"""Rounds of a first attempt. A few sizes may differ, because a number in the metadata grows by a byte now and then."""


class Single(enum.IntEnum):
    """The fields of Pulsar's SingleMessageMetadata that are decoded."""

    PROPERTIES = 1
    PARTITION_KEY = 2
    PAYLOAD_SIZE = 3
    COMPACTED_OUT = 4
    EVENT_TIME = 5
    KEY_IS_BASE64 = 6
    ORDERING_KEY = 7
    SEQUENCE_ID = 8
    NULL_VALUE = 9
    NULL_KEY = 10


_SIZE_TAG: Final = np.uint64(Single.PAYLOAD_SIZE << 3)
_SIZE_ONLY: Final = WantedFields(
    numbers=frozenset({Single.PAYLOAD_SIZE}), until=Single.PAYLOAD_SIZE
)
_IS_TAG: Final = np.zeros(256, np.bool_)
_IS_TAG[[0x0A, 0x12, 0x18, 0x20, 0x28, 0x30, 0x3A, 0x40, 0x48, 0x50]] = True
"""The tags of all fields of SingleMessageMetadata."""

_ALL: Final = WantedFields(
    numbers=frozenset(
        {
            Single.PAYLOAD_SIZE,
            Single.COMPACTED_OUT,
            Single.EVENT_TIME,
            Single.KEY_IS_BASE64,
            Single.SEQUENCE_ID,
            Single.NULL_VALUE,
            Single.NULL_KEY,
        }
    ),
    pieces=frozenset({Single.PARTITION_KEY, Single.ORDERING_KEY}),
    repeated=Single.PROPERTIES,
)


@dataclass(frozen=True, slots=True)
class Batched:
    """The messages of several batches, in order."""

    metadata: Fields
    starts: Signed
    """The beginnings of the contents."""
    stops: Signed
    damaged: Bools
    """By batch: its messages are invalid."""


def read_batches(
    data: bytes, words: Unsigned, starts: Signed, stops: Signed, counts: Signed
) -> Batched:
    """Decode batches. Batch i is ``data[starts[i]:stops[i]]`` and must consist of exactly ``counts[i]`` messages, at least 1.

    ``words``: the 8-byte word at each position of ``data`` (``words_of``).
    """
    firsts = np.cumsum(counts) - counts
    batch_of = np.repeat(np.arange(len(counts)), counts)
    at, undetermined = _message_starts(data, words, starts, stops, counts)
    at[undetermined[batch_of]] = 0  # a valid position whose result is not used
    begins = at + _SIZE_BYTES
    contents = begins + np.where(undetermined[batch_of], 0, big_endian_32(words, at))
    limits = stops[batch_of]
    metadata = scan(words, np.minimum(begins, limits), np.minimum(contents, limits), _ALL)
    message_ends = contents + metadata.signed_32(Single.PAYLOAD_SIZE)
    # The walk uses the first size in a message, protobuf the last: they must agree.
    expected = np.empty_like(at)
    expected[:-1] = at[1:]
    expected[firsts + counts - 1] = stops
    wrong = metadata.damaged | ~metadata.has(Single.PAYLOAD_SIZE) | (message_ends != expected)
    damaged = undetermined.copy()
    damaged[batch_of[wrong]] = True
    return Batched(metadata, contents, message_ends, damaged)


def _message_starts(
    data: bytes, words: Unsigned, starts: Signed, stops: Signed, counts: Signed
) -> tuple[Signed, Bools]:
    """The position of each message, and the batches in which the positions could not be determined."""
    found, undetermined = np.zeros(int(counts.sum()), np.int64), np.zeros(len(counts), np.bool_)
    open_ = np.ones(len(counts), np.bool_)

    def accept(batches: Signed, positions: Signed, good: Bools) -> None:
        """Accept the positions of complete batches."""
        complete = np.zeros(len(counts), np.bool_)
        complete[batches[good]] = True
        found[np.repeat(complete, counts)] = positions[np.repeat(good, counts[batches])]
        open_[complete] = False

    def walk(batches: Signed) -> bool:
        """Whether a few rounds were enough for all of them."""
        positions, undetermined = _walk(
            words, starts[batches], stops[batches], counts[batches], _FIRST_ROUNDS
        )
        accept(batches, positions, ~undetermined)
        return not undetermined.any()

    is_large = (stops - starts) // counts >= _WALKED_FIRST_BYTES_MIN
    small = np.flatnonzero(~is_large)
    if is_large.any():
        walk(np.flatnonzero(is_large))
    if len(small) and walk(small[:_SAMPLED_BATCHES]) and len(small) > _SAMPLED_BATCHES:
        walk(small[_SAMPLED_BATCHES:])
    rest = np.flatnonzero(open_)
    if len(rest):
        scanned = _search(data, words, starts[rest], stops[rest], counts[rest])
        accept(rest, *scanned)
    rest = np.flatnonzero(open_)
    if len(rest):
        positions, undetermined[rest] = _walk(words, starts[rest], stops[rest], counts[rest])
        found[np.repeat(open_, counts)] = positions
    return found, undetermined


def _search(
    data: bytes, words: Unsigned, starts: Signed, stops: Signed, counts: Signed
) -> tuple[Signed, Bools]:
    """The position of each message, and the batches whose positions were all found."""
    positions, of_batch = _candidates(data, words, starts, stops)
    message_ends, good = _message_ends(words, positions, stops[of_batch])
    positions, of_batch, message_ends = positions[good], of_batch[good], message_ends[good]
    ends_batch = message_ends == stops[of_batch]
    # From here on, candidates are named by their index; the index ``none`` stands for no candidate.
    none = len(positions)
    nexts = np.append(np.searchsorted(positions, message_ends), none)
    has_next = ~ends_batch & (np.append(positions, -1)[nexts[:-1]] == message_ends)
    nexts[:-1][~has_next] = none
    firsts = np.searchsorted(positions, starts)
    firsts[np.append(positions, -1)[firsts] != starts] = none
    reached = _reached(nexts, firsts, int(counts.max()))[:-1]
    positions, of_batch, ends_batch = positions[reached], of_batch[reached], ends_batch[reached]
    good = np.bincount(of_batch, minlength=len(counts)) == counts
    good &= np.bincount(of_batch[ends_batch], minlength=len(counts)) == 1
    found = np.zeros(int(counts.sum()), np.int64)
    order = np.argsort(of_batch, kind="stable")
    order = order[good[of_batch[order]]]
    found[np.repeat(good, counts)] = positions[order]
    return found, good


def _candidates(
    data: bytes, words: Unsigned, starts: Signed, stops: Signed
) -> tuple[Signed, Signed]:
    """Positions where a message may begin, ascending, and the batch of each."""
    low, high = int(starts.min()), int(stops.max())
    is_zero = np.frombuffer(data, np.uint8, high - low, low) == 0
    # A tag is not zero. This check skips contents that are full of zeros.
    likely = is_zero[:-_SIZE_BYTES] & is_zero[1 : 1 - _SIZE_BYTES] & ~is_zero[_SIZE_BYTES:]
    positions = low + np.flatnonzero(likely)
    positions = positions[_IS_TAG[words[positions + _SIZE_BYTES].astype(np.uint8)]]
    order = np.argsort(starts)
    of_batch = order[np.searchsorted(starts[order], positions, "right") - 1]
    within = positions + MESSAGE_BYTES_MIN <= stops[of_batch]
    return positions[within], of_batch[within]


def _reached(nexts: Signed, firsts: Signed, steps: int) -> Bools:
    """Which candidates are reached from ``firsts`` in less than ``steps`` steps.

    ``nexts`` is the index of the candidate after each one. The last index stands for no candidate.
    """
    reached = np.zeros(len(nexts), np.bool_)
    reached[firsts] = True
    for _ in range(steps.bit_length()):  # each round doubles the length of the steps in ``nexts``
        reached[nexts[reached]] = True
        if reached.all():
            break
        nexts = nexts[nexts]
    reached[-1] = False
    return reached


def _walk(
    words: Unsigned,
    starts: Signed,
    stops: Signed,
    counts: Signed,
    rounds_max: int = BATCH_MESSAGES_MAX,
) -> tuple[Signed, Bools]:
    """The position of each message, and the batches for which ``rounds_max`` rounds were not enough."""
    firsts = np.cumsum(counts) - counts
    found = np.zeros(int(counts.sum()), np.int64)
    undetermined = np.zeros(len(starts), np.bool_)
    # Of each batch that is not finished: its number, the next position, the messages found, and the length of the next run.
    batches = np.arange(len(starts))
    cursors, done, guesses = starts.copy(), np.zeros(len(starts), np.int64), counts
    strides = (_message_ends(words, cursors, stops)[0] - cursors).clip(1)
    for _ in range(rounds_max):
        if not len(batches):
            break
        runs = np.minimum(guesses, counts[batches] - done)
        runs = np.minimum(runs, (stops[batches] - cursors) // strides).clip(1)
        lane, step = _expanded(runs)
        positions = cursors[lane] + step * strides[lane]
        message_ends, readable = _message_ends(words, positions, stops[batches][lane])
        equal = readable & (message_ends - positions == strides[lane])
        accepted = _equal_run(equal, runs)
        kept = step < accepted[lane]
        found[(firsts[batches] + done)[lane[kept]] + step[kept]] = positions[kept]
        last = np.cumsum(runs) - runs + accepted - 1
        undetermined[batches[~readable[last]]] = True
        done = done + accepted
        left = readable[last] & (done < counts[batches])
        guesses = np.where(accepted == runs, runs * _GUESS_FACTOR, accepted)[left]
        strides = (message_ends - positions)[last][left]
        cursors, done, batches = message_ends[last][left], done[left], batches[left]
    undetermined[batches] = True
    return found, undetermined


def _expanded(runs: Signed) -> tuple[Signed, Signed]:
    """The run of each element, and its place in the run; for runs of 2 and 3: (0, 0, 1, 1, 1) and (0, 1, 0, 1, 2)."""
    lane = np.repeat(np.arange(len(runs)), runs)
    return lane, np.arange(len(lane)) - (np.cumsum(runs) - runs)[lane]


def _equal_run(equal: Bools, runs: Signed) -> Signed:
    """The length of each run's prefix of equal sizes, including the first message of another size."""
    begins = np.cumsum(runs) - runs
    unequal = np.where(equal, len(equal), np.arange(len(equal)))
    first_unequal = np.minimum.reduceat(unequal, begins) - begins
    accepted: Signed = np.minimum(first_unequal + 1, runs)
    return accepted


def _message_ends(words: Unsigned, at: Signed, stops: Signed) -> tuple[Signed, Bools]:
    """The end of the message at each position, and whether it is at or before the stop."""
    begins = at + _SIZE_BYTES
    contents = begins + big_endian_32(words, at)
    good = contents <= stops
    # Most messages have neither a key nor properties: their metadata begins with the size of the content.
    if (words[begins] & _BYTE == _SIZE_TAG).all():
        sizes, lengths = varints(words, begins + 1)
        good &= (lengths > 0) & (begins + 1 + lengths <= contents)
    else:
        metadata = scan(words, begins, np.where(good, contents, begins), _SIZE_ONLY)
        sizes = metadata.unsigned(Single.PAYLOAD_SIZE)
        good &= metadata.has(Single.PAYLOAD_SIZE) & ~metadata.damaged
    message_ends = contents + sizes.astype(np.int32)
    good &= (message_ends >= contents) & (message_ends <= stops)
    return message_ends, good
