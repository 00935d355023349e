"""The library by which Argo CD compares, applies and prunes, as a program; built once and kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.binaries import own_program
from tests.cluster.commands import run
from tests.cluster.control_plane import ControlPlane

HERE = Path(__file__).resolve().parent
SYNC_SECONDS = 300.0

Json = dict[str, Any]


@dataclass
class Synced:
    """The result of a sync: objects by what was done with them (``KIND/NAMESPACE/NAME``)."""

    differing: set[str] = field(default_factory=set)
    """Objects that were not as wanted before it."""
    actions: dict[str, str] = field(default_factory=dict)
    """Synced, Pruned or PruneSkipped, or SyncFailed."""

    def done(self, action: str) -> set[str]:
        """The objects with which this was done."""
        return {name for name, each in self.actions.items() if each == action}


def program() -> Path:
    """The program, built if need be. Raises CannotBuild."""
    return own_program(HERE, "argocd")


def synced(
    cluster: ControlPlane, objects: Sequence[Json], namespace: str, *, tracking: str
) -> Synced:
    """Let the Application ``onewriter`` contain these objects and no others.

    ``tracking``: "annotation", or "label" as before Argo CD 3.
    """
    wanted = {
        "name": "onewriter",
        "namespace": namespace,
        "tracking": tracking,
        "objects": list(objects),
    }
    done = run([program(), cluster.kubeconfig], stdin=json.dumps(wanted), seconds=SYNC_SECONDS)
    found = Synced()
    messages = []
    for line in map(json.loads, done.stdout.splitlines()):
        if line["action"] == "differs":
            found.differing.add(line["object"])
        else:
            found.actions[line["object"]] = line["action"]
            messages.append(line)
    if done.returncode != 0:
        raise RuntimeError(f"argocd: {done.stderr}{messages}")
    return found


if __name__ == "__main__":
    program()
