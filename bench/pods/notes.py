"""What a candidate leaves behind: what happened to it, on the machine's monotonic clock."""

from __future__ import annotations

import argparse
import time
from io import FileIO
from pathlib import Path
from typing import Self


class Notes:
    """A file with one line per event, "NAME NANOSECONDS". Use as a context manager."""

    def __init__(self, file: Path) -> None:
        # One write call per line, unbuffered: what happened before a kill is in the file.
        self._file = FileIO(file, "ab")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, event: str) -> None:
        """It happens now."""
        self._file.write(f"{event} {time.monotonic_ns()}\n".encode())


def stamps(notes: str, event: str) -> list[int]:
    """When this happened, in nanoseconds. A line cut off by a kill is not counted."""
    lines = (line.split() for line in notes.split("\n")[:-1])
    return [int(stamp) for name, stamp in lines if name == event]


def arguments(description: str | None) -> argparse.ArgumentParser:
    """What every candidate is told."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("contest", help="the topic or the Lease")
    parser.add_argument("--notes", type=Path, required=True, help="this candidate's file")
    parser.add_argument("--namespace", required=True, help="of the contest")
    parser.add_argument("--pace-seconds", type=float, required=True, help="between two writes")
    return parser
