"""Plays every transcript of this folder against the topic machine.

After an intended change of the machine, ``REWRITE_TRANSCRIPTS=1`` writes its present behaviour into the files.
Read the difference before you commit it.

How to read a failure:

* ``Violation: line 35: > fence: NAME: VALUE``: after the event in this line of the transcript, the invariant NAME does
  not hold. NAME is what should hold. VALUE is what was found: ``[]`` means that nothing was answered, and a tuple names
  a registration that got no effect. invariants.py contains NAME and the check.
* A difference of texts: the first line with ``+`` or ``-`` is an effect that the machine added or omitted. The event is the
  last line with ``>`` before it.
* ``ImpossibleStep`` or ``AttributeError``: the function for this phase and this kind of event is not made for the event.
  The message names the event but no line of the transcript.

In each case the row of the event and the column of the phase in ``ROWS`` (machine.py) name the function that ran.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.scenarios import transcripts
from tests.scenarios.transcripts import play

from onewriter_core.topic.invariants import Violation
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
