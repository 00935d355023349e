"""The library by which Flux's kustomize-controller applies and prunes, as a program; built once and kept."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cluster.binaries import own_program
from tests.cluster.commands import run
from tests.cluster.control_plane import ControlPlane

HERE = Path(__file__).resolve().parent
SYNC_SECONDS = 300.0

Json = dict[str, Any]


def program() -> Path:
    """The program, built if need be. Raises CannotBuild."""
    return own_program(HERE, "flux")


def synced(
    cluster: ControlPlane, objects: Sequence[Json], *, previous: Sequence[Json] = ()
) -> dict[str, str]:
    """Apply these objects and prune those of ``previous`` that are not among them; return what was done with each."""
    wanted = {
        "name": "onewriter",
        "namespace": "flux-system",
        "objects": list(objects),
        "previous": list(previous),
    }
    done = run([program(), cluster.kubeconfig], stdin=json.dumps(wanted), seconds=SYNC_SECONDS)
    if done.returncode != 0:
        raise RuntimeError(f"flux: {done.stderr}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["object"]: line["action"] for line in lines}


def count(actions: dict[str, str]) -> Counter[str]:
    """How many objects each action was done with."""
    return Counter(actions.values())


if __name__ == "__main__":
    program()
