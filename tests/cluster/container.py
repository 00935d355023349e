"""Runs the image as a cluster would, without a cluster: an unprivileged user and a read-only root.

runc starts it from the unpacked archive, in the network of this machine, so that a test reaches it
on loopback.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cluster import commands, images

USER = 65532

SECONDS_MAX = 180.0
"""Time limit of every wait for an end."""


def missing() -> list[str]:
    """Return why no container can run here, one sentence each."""
    found = images.missing()
    if shutil.which("runc") is None:
        found.append("packages: apt-get install -y runc")
    return found


class Container:
    """One container of the image. ``writable`` are directories that pods mount; all others are read-only."""

    def __init__(
        self,
        root: Path,
        directory: Path,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        writable: Mapping[str, Path] | None = None,
        readable: Mapping[str, Path] | None = None,
    ) -> None:
        self.name = f"onewriter-{uuid.uuid4().hex[:8]}"
        self.directory = directory / self.name
        self.directory.mkdir()
        temporary = self.directory / "tmp"
        temporary.mkdir()
        temporary.chmod(0o1777)
        mounts = [*_SYSTEM_MOUNTS]
        for target, source in {"/tmp": temporary, **(writable or {})}.items():  # noqa: S108
            mounts.append(_bind(target, source, "rw"))
        for target, source in (readable or {}).items():
            mounts.append(_bind(target, source, "ro"))
        variables = {
            "PATH": "/opt/onewriter/bin:/usr/bin:/bin",
            "HOME": "/tmp",  # noqa: S108 - as in the image
            **(environment or {}),
        }
        specification = _specification(root, command, variables, mounts)
        (self.directory / "config.json").write_text(json.dumps(specification))
        self._log = self.directory / "log"
        self._state = self.directory / "state"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                self._runc("run", f"--bundle={self.directory}", self.name), stdout=log, stderr=log
            )

    def log(self) -> str:
        """Return all of its output."""
        return self._log.read_text(errors="replace")

    def wait(self, seconds: float = SECONDS_MAX) -> int:
        """Wait for its end; return its exit code."""
        assert self.process is not None
        return self.process.wait(seconds)

    def stop(self) -> int:
        """Send SIGTERM, as a kubelet does; return its exit code."""
        commands.run(self._runc("kill", self.name, "TERM"), seconds=SECONDS_MAX)
        assert self.process is not None
        try:
            return self.process.wait(SECONDS_MAX)
        finally:
            commands.run(self._runc("delete", "--force", self.name), seconds=SECONDS_MAX)

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run another process in it, like an exec probe."""
        within = self._runc("exec", f"--user={USER}:{USER}", self.name, *command)
        return commands.run(within, seconds=SECONDS_MAX)

    def _runc(self, verb: str, *arguments: str) -> list[str]:
        return ["runc", f"--root={self._state}", verb, *arguments]


def _bind(target: str, source: Path, mode: str) -> dict[str, Any]:
    return {
        "destination": target,
        "type": "bind",
        "source": str(source),
        "options": ["rbind", mode, "nosuid", "nodev"],
    }


_SYSTEM_MOUNTS: list[dict[str, Any]] = [
    {"destination": "/proc", "type": "proc", "source": "proc"},
    {
        "destination": "/dev",
        "type": "tmpfs",
        "source": "tmpfs",
        "options": ["nosuid", "strictatime", "mode=755", "size=65536k"],
    },
]


def _specification(
    root: Path, command: Sequence[str], environment: Mapping[str, str], mounts: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the specification that a node's runtime would create for a restricted pod."""
    none: dict[str, list[str]] = {
        each: [] for each in ("bounding", "effective", "inheritable", "permitted")
    }
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": USER, "gid": USER},
            "args": list(command),
            "env": [f"{name}={value}" for name, value in environment.items()],
            "cwd": "/tmp",  # noqa: S108 - as in the image
            "capabilities": none,
            "noNewPrivileges": True,
        },
        "root": {"path": str(root), "readonly": True},
        "hostname": "onewriter",
        "mounts": mounts,
        "linux": {
            "namespaces": [{"type": each} for each in ("pid", "ipc", "uts", "mount")],
            "maskedPaths": ["/proc/kcore", "/proc/keys"],
            "readonlyPaths": ["/proc/sys", "/proc/sysrq-trigger"],
        },
    }
