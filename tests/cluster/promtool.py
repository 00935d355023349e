"""Prometheus' own tool, for rules and queries: out of Debian's package, which is not installed."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

PACKAGE = "prometheus"


def missing() -> list[str]:
    """Why there is none here, one sentence each."""
    if shutil.which("promtool") or all(map(shutil.which, ("apt-get", "dpkg-deb"))):
        return []
    return ["promtool: install Prometheus, https://prometheus.io/download"]


def program() -> Path:
    """The program; unpacked once, beside the other things that are kept outside the checkout."""
    found = shutil.which("promtool")
    if found is not None:
        return Path(found)
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onewriter" / "promtool"
    )
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / "root" / "usr" / "bin" / "promtool"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            if os.geteuid() == 0:
                subprocess.run(["apt-get", "update", "-q"], check=True, capture_output=True)
            subprocess.run(
                ["apt-get", "download", PACKAGE], cwd=cache, check=True, capture_output=True
            )
            (package,) = cache.glob(f"{PACKAGE}_*.deb")
            unfinished = cache / "unfinished"
            subprocess.run(["dpkg-deb", "-x", package, unfinished], check=True)
            unfinished.rename(cache / "root")
            package.unlink()
    return target
