"""A broker process as a child of a supervisor."""

from __future__ import annotations

import sys

from onewriter_broker.local.supervisor import ChildSpec
from onewriter_broker.settings import Settings


def broker_child(settings: Settings) -> ChildSpec:
    """A broker process, and the file in the data directory that it reads its settings from."""
    path = settings.data_dir.absolute() / "run" / f"{settings.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(settings.model_dump_json())
    command = [sys.executable, "-P", "-m", "onewriter_broker.process", str(path)]
    return ChildSpec(settings.name, lambda heartbeat: [*command, str(heartbeat)])
