"""The Go client's program in this folder, built once and kept: a first build takes minutes.

python -m tests.conformance.go.program
"""

from __future__ import annotations

from pathlib import Path

from tests.cluster.binaries import own_program

HERE = Path(__file__).resolve().parent


def program() -> Path:
    """The program, built if need be. Raises CannotBuild."""
    return own_program(HERE, "go-client")


if __name__ == "__main__":
    program()
