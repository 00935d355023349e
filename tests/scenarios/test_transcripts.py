"""Plays every transcript of this folder against the topic machine.

After an intended change of the machine, ``REWRITE_TRANSCRIPTS=1`` writes its present behaviour into the files.
Read the difference before you commit it.

How to read a failure:

* ``Violation: line 35: > fence: NAME: registration A: expected Queue, found nothing``: after the event in this line of
  the transcript, the invariant NAME does not hold for this registration. tests/topic_invariants.py contains NAME and the check.
* A difference of texts: the first line with ``+`` or ``-`` is an effect that the machine added or omitted. The event is the
  last line with ``>`` before it.
* ``UnplayableLine: line 35: > stored ledger=1: ImpossibleStep: ...``: the function for this phase and this kind of event is
  not made for the event in this line. The name after the line is that of the exception, often ``AttributeError``.

In each case the row of the event and the column of the phase in ``ROWS`` (machine.py) name the function that ran.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.scenarios import transcripts
from tests.scenarios.transcripts import UnplayableLine, play
from tests.violation import Violation

from onewriter_core.topic.model import Topic

FOLDER = Path(__file__).parent
TRANSCRIPTS = sorted(path.stem for path in FOLDER.glob("*.txt"))


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_the_machine_plays_its_part(name: str) -> None:
    path = FOLDER / f"{name}.txt"
    expected = path.read_text()
    played = play(expected)
    if os.environ.get("REWRITE_TRANSCRIPTS"):
        path.write_text(played)
        return
    assert played == expected


def test_a_broken_invariant_is_reported_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(topic: Topic) -> None:
        raise Violation(f"{len(topic.partitions)} partition is one too many")

    monkeypatch.setattr(transcripts, "check", broken)
    with pytest.raises(Violation, match=r"^line 2: > ask A Exclusive: 1 partition is"):
        play("topic\n> ask A Exclusive\n")


@pytest.mark.parametrize(
    ("transcript", "message"),
    [
        (
            "topic\n> stored ledger=1\n",
            r"^line 2: > stored ledger=1: ImpossibleStep: FenceStored",
        ),
        ("topic\n# nobody\n> ask A\n", r"^line 3: > ask A: IndexError: "),
        ("topic\n> vanish A\n", r"^line 2: > vanish A: ValueError: nothing is called 'vanish'"),
        ("topic epoch=one\n", r"^line 1: topic epoch=one: ValueError: "),
    ],
)
def test_a_line_that_cannot_be_played_is_named(transcript: str, message: str) -> None:
    with pytest.raises(UnplayableLine, match=message):
        play(transcript)
