"""The kstatus library that Flux, kpt and Helm judge objects by, as a program; built once and kept."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cluster.binaries import BUILD_SECONDS, CannotBuild, directory, exclusively, missing_tools
from tests.cluster.commands import CommandHangs, run

HERE = Path(__file__).resolve().parent
JUDGE_SECONDS = 60.0


def program() -> Path:
    """The program, built if need be. Raises CannotBuild."""
    sources = b"".join((HERE / name).read_bytes() for name in ("go.mod", "go.sum", "main.go"))
    target = directory().parent / f"kstatus-{hashlib.sha256(sources).hexdigest()[:12]}"
    if target.exists():  # whoever builds something else keeps nobody waiting
        return target
    with exclusively("build", BUILD_SECONDS):
        if not target.exists():
            if missing_tools():
                raise CannotBuild(f"kstatus: {missing_tools()[0]}")
            unfinished = target.with_suffix(".unfinished")
            try:
                done = run(
                    ["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", unfinished, "."],
                    directory=HERE,
                    environment={**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"},
                    seconds=BUILD_SECONDS,
                )
            except CommandHangs as error:
                raise CannotBuild(f"kstatus: {error}\nis Go's module proxy reachable?") from None
            if done.returncode != 0:
                raise CannotBuild(f"kstatus: {done.stderr[-2000:]}")
            unfinished.rename(target)
    return target


def computed(objects: Sequence[dict[str, Any]]) -> list[str]:
    """InProgress, Current, Failed, Terminating, ... of each."""
    lines = "".join(json.dumps(each) + "\n" for each in objects)
    done = run([program()], stdin=lines, seconds=JUDGE_SECONDS)
    if done.returncode != 0:
        raise RuntimeError(f"kstatus: {done.stderr}")
    return done.stdout.split()


if __name__ == "__main__":
    program()
