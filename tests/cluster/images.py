"""The container image as an archive, ``dist/onewriter-image.tar``: by Docker, or without it.

    python -m tests.cluster.images

Where no Docker answers, Debian's buildah runs the very Dockerfile on a base made by mmdebstrap; the
packages come from wheels laid into ``dist/wheels``. Base and tools are kept outside the checkout. An
archive that is newer than its sources is left as it is.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = ROOT / "dist" / "onewriter-image.tar"
WHEELS = ROOT / "dist" / "wheels"
TAG = "localhost/onewriter:dev"

EXTRAS = "broker,client,embedded,operator"
SOURCES = (
    *("Dockerfile", ".dockerignore", "pyproject.toml"),
    *("core", "broker", "client", "operator", "pipeline"),
)

SUITE = "bookworm"
BASE_PACKAGES = ("python3", "python3-venv", "ca-certificates", "libstdc++6")
BASE_NAME = hashlib.sha256(" ".join((SUITE, *BASE_PACKAGES)).encode()).hexdigest()[:12]
BASE = f"localhost/onewriter-base:{BASE_NAME}"
TOOLS = ("buildah", "mmdebstrap")
DAY_SECONDS = 86_400
PROXIES = ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy")
"""Variables that say how the network is reached."""


class CannotBuild(Exception):
    """The image cannot be built here; the text says what to do."""


def missing() -> list[str]:
    """Why no image can be built here, one sentence each."""
    if _docker_answers() or all(map(shutil.which, TOOLS)):
        return []
    if os.geteuid() == 0 and shutil.which("apt-get"):
        return []
    return [f"Docker, or as root: apt-get install -y {' '.join(TOOLS)}"]


def archive() -> Path:
    """The archive, built if it is not there or older than its sources. Raises CannotBuild."""
    ARCHIVE.parent.mkdir(exist_ok=True)
    with _locked(ARCHIVE.parent / ".image.lock"):
        fingerprint = _fingerprint()
        noted = ARCHIVE.with_suffix(".sources")
        if not (ARCHIVE.exists() and noted.exists() and noted.read_text() == fingerprint):
            ARCHIVE.unlink(missing_ok=True)
            if _docker_answers():
                _by_docker()
            else:
                _by_buildah()
            noted.write_text(fingerprint)
    return ARCHIVE


def _fingerprint() -> str:
    """Changes whenever the image would."""
    digest = hashlib.sha256()
    for name in SOURCES:
        path = ROOT / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _docker_answers() -> bool:
    if shutil.which("docker") is None:
        return False
    done = subprocess.run(
        ["docker", "version", "--format", "{{.Server.Version}}"], capture_output=True, check=False
    )
    return done.returncode == 0


def _by_docker() -> None:
    _run(["docker", "build", "--tag", TAG, str(ROOT)])
    _run(["docker", "save", "--output", str(ARCHIVE), TAG])


def _by_buildah() -> None:
    _get_tools()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onewriter" / "image"
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / "lock"):  # checkouts beside this one build too
        _make_base(cache)
        _lay_wheels(cache)
        _buildah(
            cache,
            "bud",
            "--isolation=chroot",
            f"--build-arg=BASE={BASE}",
            "--format=docker",
            f"--tag={TAG}",
            str(ROOT),
        )
        _buildah(cache, "push", TAG, f"docker-archive:{ARCHIVE}:{TAG}")
        _buildah(cache, "rmi", TAG)
        _buildah(cache, "rmi", "--prune")


def _get_tools() -> None:
    lacking = [name for name in TOOLS if shutil.which(name) is None]
    if not lacking:
        return
    if missing():
        raise CannotBuild(f"the image needs {missing()[0]}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    _run(["apt-get", "update"], environment)
    _run(["apt-get", "install", "--yes", "--no-install-recommends", *lacking], environment)


def _lay_wheels(cache: Path) -> None:
    """Everything that the image installs; what it needs of others is fetched once a day at most."""
    shutil.rmtree(WHEELS, ignore_errors=True)
    WHEELS.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    _run([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(WHEELS), str(ROOT)])
    (own,) = WHEELS.glob("onewriter-*.whl")
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()[:12]
    kept = cache / f"wheels-{wanted}"
    if not kept.exists() or time.time_ns() / 1e9 - kept.stat().st_mtime > DAY_SECONDS:
        for older in cache.glob("wheels-*"):
            shutil.rmtree(older)
        unfinished = cache / "unfinished-wheels"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        shutil.copy2(own, unfinished)
        _download(cache, pip, unfinished, own.name)
        (unfinished / own.name).unlink()
        unfinished.rename(kept)
    for wheel in kept.iterdir():
        shutil.copy2(wheel, WHEELS)


def _download(cache: Path, pip: Sequence[str], target: Path, own: str) -> None:
    """Chosen by the base's own Python, found as pip is told to here."""
    authority = _run([*pip, "config", "get", "global.cert"], check=False).stdout.strip()
    index = _run([*pip, "config", "get", "global.index-url"], check=False).stdout.strip()
    shared = [
        f"--volume={target}:/wheels",
        f"--volume={authority or '/etc/ssl/certs/ca-certificates.crt'}:/run/authority.crt:ro",
        "--env=PIP_CERT=/run/authority.crt",
        *([f"--env=PIP_INDEX_URL={index}"] if index else []),
        *(f"--env={name}" for name in PROXIES if name in os.environ),
    ]
    script = (
        "python3 -m venv /tmp/venv && /tmp/venv/bin/pip download --quiet --dest /wheels"
        f" --only-binary=:all: '/wheels/{own}[{EXTRAS}]'"
    )
    container = _buildah(cache, "from", BASE).stdout.strip()
    try:
        _buildah(cache, "run", "--isolation=chroot", *shared, container, "sh", "-c", script)
    finally:
        _buildah(cache, "rm", container)


def _make_base(cache: Path) -> None:
    """The base image, once: a small Debian with Python."""
    found = _buildah(cache, "images", "--quiet", BASE, check=False)
    if found.returncode == 0 and found.stdout.strip():
        return
    root = cache / f"base-{BASE_NAME}.tar"
    if not root.exists():
        unfinished = cache / "unfinished-base.tar"
        packages = ",".join(BASE_PACKAGES)
        _run([
            "mmdebstrap", "--variant=essential", f"--include={packages}", SUITE, str(unfinished),
        ])  # fmt: skip
        unfinished.rename(root)
    container = _buildah(cache, "from", "scratch").stdout.strip()
    _buildah(cache, "add", container, str(root), "/")
    _buildah(cache, "commit", "--rm", container, BASE)


def _buildah(cache: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """buildah with a storage of our own, which works without overlay mounts."""
    command = ["buildah", f"--root={cache / 'storage'}", f"--runroot={cache / 'run'}", *arguments]
    return _run(command, {**os.environ, "STORAGE_DRIVER": "vfs"}, check=check)


def _run(
    command: Sequence[str], environment: dict[str, str] | None = None, *, check: bool = True
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        text = f"{done.stdout[-1500:]}{done.stderr[-2500:]}"
        raise CannotBuild(f"{' '.join(command[:3])} ... failed:\n{text}")
    return done


def unpack(target: Path) -> Path:
    """The image's file system, for looking at it or for running it without a runtime."""
    with tarfile.open(archive()) as whole:
        manifest = whole.extractfile("manifest.json")
        if manifest is None:
            raise CannotBuild("the archive has no manifest")
        for layer in json.load(manifest)[0]["Layers"]:
            content = whole.extractfile(layer)
            with tarfile.open(fileobj=content) as files:
                files.extractall(target, filter="tar")
    target.chmod(0o755)  # it is everybody's root directory
    return target


def main() -> int:
    try:
        print(archive())
    except CannotBuild as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
