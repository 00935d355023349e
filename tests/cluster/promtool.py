"""Prometheus' own tool for rules and queries, taken from Debian's package without installing it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.cluster.binaries import BUILD_SECONDS, CannotBuild, locked
from tests.cluster.commands import CommandHangs, run

PACKAGE = "prometheus"
FETCH_SECONDS = 300.0
"""Time limit of one step of fetching it."""


def missing() -> list[str]:
    """Return why it is not available here, one sentence each."""
    if shutil.which("promtool") or all(map(shutil.which, ("apt-get", "dpkg-deb"))):
        return []
    return ["promtool: install Prometheus, https://prometheus.io/download"]


def program() -> Path:
    """Return the program, unpacked once into the cache outside the checkout.

    Raises CannotBuild.
    """
    found = shutil.which("promtool")
    if found is not None:
        return Path(found)
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onewriter" / "promtool"
    )
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / "root" / "usr" / "bin" / "promtool"
    with locked(cache / "lock", BUILD_SECONDS):
        if not target.exists():
            if os.geteuid() == 0:
                _fetch(["apt-get", "update", "-q"], cache)
            _fetch(["apt-get", "download", PACKAGE], cache)
            (package,) = cache.glob(f"{PACKAGE}_*.deb")
            unfinished = cache / "unfinished"
            _fetch(["dpkg-deb", "-x", str(package), str(unfinished)], cache)
            unfinished.rename(cache / "root")
            package.unlink()
    return target


def _fetch(command: list[str], directory: Path) -> None:
    try:
        done = run(command, directory=directory, seconds=FETCH_SECONDS)
    except CommandHangs as error:
        raise CannotBuild(f"promtool: {error}\nis Debian's mirror reachable?") from None
    if done.returncode != 0:
        raise CannotBuild(f"promtool: {' '.join(command)} failed:\n{done.stderr}")
