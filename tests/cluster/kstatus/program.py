"""The kstatus library that Flux, kpt and Helm judge objects by, as a program; built once and kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cluster.binaries import own_program
from tests.cluster.commands import run

HERE = Path(__file__).resolve().parent
JUDGE_SECONDS = 60.0


def program() -> Path:
    """The program, built if need be. Raises CannotBuild."""
    return own_program(HERE, "kstatus")


def computed(objects: Sequence[dict[str, Any]]) -> list[str]:
    """InProgress, Current, Failed, Terminating, ... of each."""
    lines = "".join(json.dumps(each) + "\n" for each in objects)
    done = run([program()], stdin=lines, seconds=JUDGE_SECONDS)
    if done.returncode != 0:
        raise RuntimeError(f"kstatus: {done.stderr}")
    return done.stdout.split()


if __name__ == "__main__":
    program()
