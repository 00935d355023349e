"""The kstatus library that Flux, kpt and Helm judge objects by, as a program; built once and kept."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cluster.binaries import CannotBuild, directory, exclusively, missing_tools

HERE = Path(__file__).resolve().parent


def program() -> Path:
    """The program, built if need be. Raises CannotBuild."""
    sources = b"".join((HERE / name).read_bytes() for name in ("go.mod", "go.sum", "main.go"))
    target = directory().parent / f"kstatus-{hashlib.sha256(sources).hexdigest()[:12]}"
    if target.exists():  # whoever builds something else keeps nobody waiting
        return target
    with exclusively("build"):
        if not target.exists():
            if missing_tools():
                raise CannotBuild(f"kstatus: {missing_tools()[0]}")
            unfinished = target.with_suffix(".unfinished")
            done = subprocess.run(
                ["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", str(unfinished), "."],
                cwd=HERE,
                env={**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                raise CannotBuild(f"kstatus: {done.stderr[-2000:]}")
            unfinished.rename(target)
    return target


def computed(objects: Sequence[dict[str, Any]]) -> list[str]:
    """InProgress, Current, Failed, Terminating, ... of each."""
    lines = "".join(json.dumps(each) + "\n" for each in objects)
    done = subprocess.run([program()], input=lines, capture_output=True, text=True, check=True)
    return done.stdout.split()


if __name__ == "__main__":
    program()
