"""Finds the positions of the messages in batches.

A batch is a sequence of messages. Each message is the size of its metadata, the metadata (which includes the size of
the content), and the content. So the position of a message depends on the previous message. Two methods find the
positions without visiting one message after the other:

* **Walking** visits all batches in parallel. In each round it assumes that the next messages of a batch have the size
  of the previous one, checks all of them at once, and continues after the first one with another size.
* **Searching** finds positions that may be the beginning of a message: two zero bytes (metadata is smaller than
  64 KiB) and, after the size, the tag of a known field. From each such position it computes where the next message
  would begin. The messages are the positions that are reached from the beginning of the batch in the right number.

Small messages are searched, and large messages are walked if they have equal sizes. If searching fails, for example
in contents that are made to mislead it, walking continues for as many rounds as it takes.
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

_SIZE_BYTES = 4
_GUESS_GROWS: Final = 2
_BYTE: Final = np.uint64(0xFF)
_WALKED_FIRST_BYTES_MIN: Final = 256
"""Average size of messages from which the decoder first tries equal sizes, because searching reads every byte."""

_FIRST_ROUNDS: Final = 6
"""Rounds of that attempt. The size of a number in the metadata changes now and then."""


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
    """Decode batches of ``counts`` messages (at least 1) that fill their slices exactly."""
    firsts = np.cumsum(counts) - counts
    batch_of = np.repeat(np.arange(len(counts)), counts)
    at, lost = _places(data, words, starts, stops, counts)
    at[lost[batch_of]] = 0  # a valid position whose result is not used
    begins = at + _SIZE_BYTES
    contents = begins + np.where(lost[batch_of], 0, big_endian_32(words, at))
    limits = stops[batch_of]
    metadata = scan(words, np.minimum(begins, limits), np.minimum(contents, limits), _ALL)
    behind = contents + metadata.signed_32(Single.PAYLOAD_SIZE)
    # The walk uses the first size in a message, protobuf the last: they must agree.
    expected = np.empty_like(at)
    expected[:-1] = at[1:]
    expected[firsts + counts - 1] = stops
    wrong = metadata.damaged | ~metadata.has(Single.PAYLOAD_SIZE) | (behind != expected)
    damaged = lost.copy()
    damaged[batch_of[wrong]] = True
    return Batched(metadata, contents, behind, damaged)


def _places(
    data: bytes, words: Unsigned, starts: Signed, stops: Signed, counts: Signed
) -> tuple[Signed, Bools]:
    """The position of each message, and the batches in which the positions could not be determined."""
    found, lost = np.zeros(int(counts.sum()), np.int64), np.zeros(len(counts), np.bool_)
    open_ = np.ones(len(counts), np.bool_)

    def done(batches: Signed, places: Signed, good: Bools) -> None:
        """Accept the positions of complete batches."""
        complete = np.zeros(len(counts), np.bool_)
        complete[batches[good]] = True
        found[np.repeat(complete, counts)] = places[np.repeat(good, counts[batches])]
        open_[complete] = False

    large = np.flatnonzero((stops - starts) // counts >= _WALKED_FIRST_BYTES_MIN)
    if len(large):
        walked = _walk(words, starts[large], stops[large], counts[large], _FIRST_ROUNDS)
        done(large, walked[0], ~walked[1])
    rest = np.flatnonzero(open_)
    if len(rest):
        scanned = _scan(data, words, starts[rest], stops[rest], counts[rest])
        done(rest, *scanned)
    rest = np.flatnonzero(open_)
    if len(rest):
        places, lost[rest] = _walk(words, starts[rest], stops[rest], counts[rest])
        found[np.repeat(open_, counts)] = places
    return found, lost


def _scan(
    data: bytes, words: Unsigned, starts: Signed, stops: Signed, counts: Signed
) -> tuple[Signed, Bools]:
    """The position of each message, and the batches whose positions were all found."""
    places, of_batch = _likely(data, words, starts, stops)
    behind, good = _behind(words, places, stops[of_batch])
    places, of_batch, behind = places[good], of_batch[good], behind[good]
    ends = behind == stops[of_batch]
    nobody = len(places)
    nexts = np.append(np.searchsorted(places, behind), nobody)
    leads = ~ends & (np.append(places, -1)[nexts[:-1]] == behind)
    nexts[:-1][~leads] = nobody
    firsts = np.searchsorted(places, starts)
    firsts[np.append(places, -1)[firsts] != starts] = nobody
    reached = _reached(nexts, firsts, int(counts.max()))[:-1]
    places, of_batch, ends = places[reached], of_batch[reached], ends[reached]
    good = np.bincount(of_batch, minlength=len(counts)) == counts
    good &= np.bincount(of_batch[ends], minlength=len(counts)) == 1
    found = np.zeros(int(counts.sum()), np.int64)
    order = np.argsort(of_batch, kind="stable")
    order = order[good[of_batch[order]]]
    found[np.repeat(good, counts)] = places[order]
    return found, good


def _likely(data: bytes, words: Unsigned, starts: Signed, stops: Signed) -> tuple[Signed, Signed]:
    """Positions that may be the beginning of a message, ascending, and the batch of each."""
    low, high = int(starts.min()), int(stops.max())
    is_zero = np.frombuffer(data, np.uint8, high - low, low) == 0
    # A tag is not zero. This check alone skips contents that are full of zeros.
    likely = is_zero[:-_SIZE_BYTES] & is_zero[1 : 1 - _SIZE_BYTES] & ~is_zero[_SIZE_BYTES:]
    places = low + np.flatnonzero(likely)
    places = places[_IS_TAG[words[places + _SIZE_BYTES].astype(np.uint8)]]
    order = np.argsort(starts)
    of_batch = order[np.searchsorted(starts[order], places, "right") - 1]
    within = places + MESSAGE_BYTES_MIN <= stops[of_batch]
    return places[within], of_batch[within]


def _reached(nexts: Signed, firsts: Signed, steps: int) -> Bools:
    """What can be reached from the first positions in less than ``steps`` steps; the last position stands for none."""
    reached = np.zeros(len(nexts), np.bool_)
    reached[firsts] = True
    for _ in range(steps.bit_length()):  # each round doubles the number of steps
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
    lost = np.zeros(len(starts), np.bool_)
    batches = np.arange(len(starts))
    cursors, done, guesses = starts.copy(), np.zeros(len(starts), np.int64), counts
    strides = (_behind(words, cursors, stops)[0] - cursors).clip(1)
    for _ in range(rounds_max):
        if not len(batches):
            break
        runs = np.minimum(guesses, counts[batches] - done)
        runs = np.minimum(runs, (stops[batches] - cursors) // strides).clip(1)
        lane, step = _expanded(runs)
        positions = cursors[lane] + step * strides[lane]
        behind, readable = _behind(words, positions, stops[batches][lane])
        equal = readable & (behind - positions == strides[lane])
        accepted = _equal_run(equal, runs)
        kept = step < accepted[lane]
        found[(firsts[batches] + done)[lane[kept]] + step[kept]] = positions[kept]
        last = np.cumsum(runs) - runs + accepted - 1
        lost[batches[~readable[last]]] = True
        done = done + accepted
        goes_on = readable[last] & (done < counts[batches])
        guesses = np.where(accepted == runs, runs * _GUESS_GROWS, accepted)[goes_on]
        strides = (behind - positions)[last][goes_on]
        cursors, done, batches = behind[last][goes_on], done[goes_on], batches[goes_on]
    lost[batches] = True
    return found, lost


def _expanded(runs: Signed) -> tuple[Signed, Signed]:
    """For runs of 2 and 3: (0, 0, 1, 1, 1) and (0, 1, 0, 1, 2)."""
    lane = np.repeat(np.arange(len(runs)), runs)
    return lane, np.arange(len(lane)) - (np.cumsum(runs) - runs)[lane]


def _equal_run(equal: Bools, runs: Signed) -> Signed:
    """The length of each run's prefix of equal sizes, including the first message of another size."""
    begins = np.cumsum(runs) - runs
    places = np.where(equal, len(equal), np.arange(len(equal)))
    first_unequal = np.minimum.reduceat(places, begins) - begins
    accepted: Signed = np.minimum(first_unequal + 1, runs)
    return accepted


def _behind(words: Unsigned, at: Signed, stops: Signed) -> tuple[Signed, Bools]:
    """The end of the message at each position, and whether it is at or before the stop."""
    begins = at + _SIZE_BYTES
    contents = begins + big_endian_32(words, at)
    good = contents <= stops
    if (
        words[begins] & _BYTE == _SIZE_TAG
    ).all():  # most messages have neither a key nor properties
        sizes, lengths = varints(words, begins + 1)
        good &= (lengths > 0) & (begins + 1 + lengths <= contents)
    else:
        metadata = scan(words, begins, np.where(good, contents, begins), _SIZE_ONLY)
        sizes = metadata.unsigned(Single.PAYLOAD_SIZE)
        good &= metadata.has(Single.PAYLOAD_SIZE) & ~metadata.damaged
    behind = contents + sizes.astype(np.int32)
    good &= (behind >= contents) & (behind <= stops)
    return behind, good
