"""Runs programs to their end with a time limit: a program that hangs is reported and does not block the run."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

WORDS_MAX = 4_000
"""Characters from the end of a program's output in an error."""

COMMAND_MAX = 300
"""Characters of the command line in an error."""


class CommandHangs(Exception):
    """A program did not end in time. The text contains its command, the limit, and its output until then."""


def run(
    command: Sequence[str | Path],
    *,
    seconds: float,
    stdin: str = "",
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; return exit code and output. Raises CommandHangs after ``seconds``.

    The processes that it has started end with it, also those in another process namespace (``nsenter``).
    """
    words = [str(word) for word in command]
    with subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        cwd=directory,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(stdin, seconds)
        except subprocess.TimeoutExpired as error:
            _kill(process)
            printed = f"{_text(error.stdout)}{_text(error.stderr)}"
            raise CommandHangs(_complaint(words, seconds, printed)) from None
        except BaseException:
            _kill(process)
            raise
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def _kill(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _text(printed: str | bytes | None) -> str:
    """Return a pipe's output so far: ``subprocess`` does not decode it."""
    return printed.decode(errors="replace") if isinstance(printed, bytes) else printed or ""


def _complaint(words: Sequence[str], seconds: float, printed: str) -> str:
    line = shlex.join(words)
    shown = line if len(line) <= COMMAND_MAX else f"{line[:COMMAND_MAX]} ..."
    return f"no end within {seconds:g} s: {shown}\nit printed: {printed[-WORDS_MAX:] or 'nothing'}"
