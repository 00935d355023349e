"""The Go client's program in this folder, built once and kept: a first build takes minutes.

python -m tests.conformance.go.program
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from tests.cluster.binaries import CannotBuild, cache, exclusively, missing_tools

HERE = Path(__file__).resolve().parent


def program() -> Path:
    """The program, built if need be. Raises CannotBuild."""
    sources = b"".join((HERE / name).read_bytes() for name in ("go.mod", "go.sum", "main.go"))
    target = cache() / f"go-client-{hashlib.sha256(sources).hexdigest()[:12]}"
    if target.exists():
        return target
    with exclusively("build"):
        if not target.exists():
            if missing_tools():
                raise CannotBuild("the Go client's program: Go 1.24 or later is missing")
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
                raise CannotBuild(f"the Go client's program: {done.stderr[-2000:]}")
            unfinished.rename(target)
    return target


if __name__ == "__main__":
    program()
