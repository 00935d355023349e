"""The container images as archives, ``dist/onewriter-image.tar`` and ``dist/onewriter-spark-image.tar``.

    python -m tests.cluster.images [onewriter] [onewriter-spark]

Docker builds them if it is available. Otherwise Debian's buildah runs the same Dockerfile on a base made by
mmdebstrap, in a copy of the sources with wheels of all packages. Bases, wheels, layers and images built of the same
sources within a day are stored outside the checkout, for other checkouts too. An archive that is newer than its
sources is not built again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import commands
from tests.cluster.binaries import locked

ROOT = Path(__file__).resolve().parents[2]
SUITE = "bookworm"
PYTHON = ("python3", "python3-venv", "ca-certificates", "libstdc++6")
TOOLS = ("buildah", "mmdebstrap")
DAY_SECONDS = 86_400
STEP_SECONDS = 1_200.0
"""Time limit of one program of a build, downloads included. A download without an answer ends with an error."""

BUILD_SECONDS = 3 * STEP_SECONDS
"""Time limit of the wait for another run that builds the image at the same time."""

ANSWER_SECONDS = 30.0
"""Time limit of the question whether Docker is available."""
CONTEXT = (
    *(".dockerignore", "README.md", "pyproject.toml", "image", "requirements"),
    *("core", "broker", "client", "operator", "pipeline"),
)
"""The files that Dockerfiles copy from."""

LISTS = ("image", "requirements/build.txt", "requirements/image-tools.txt")
"""The files that every image is built with."""

DOCKER_BASE = "python:3.13-slim"
"""The default of ``BASE``. Docker resolves it to a digest first."""

BILL = "opt/onewriter/share/sbom.cdx.json"
"""The software bill of materials, as a path in the image."""

FILES_TIME = 1_600_000_000
"""The modification time of all its files: a build step is recognized by its files, including this time."""

PROXIES = ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy")
"""Variables that configure the access to the network."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image: its ingredients, and their places.

    ``requirements`` are installed in it, with their hashes; ``packages`` are Debian packages of its base; ``sources``
    are files that change it, beside its Dockerfile; ``wheels`` is the directory for its packages. ``in_layers``: its
    build steps are stored, and steps with the same files are not repeated.
    """

    name: str
    dockerfile: str
    requirements: str
    packages: tuple[str, ...]
    sources: tuple[str, ...]
    wheels: str
    in_layers: bool = False

    @property
    def tag(self) -> str:
        """Its name on nodes."""
        return f"localhost/{self.name}:dev"

    @property
    def archive(self) -> Path:
        """The path of its archive, in the format of ``docker save``."""
        return ROOT / "dist" / f"{self.name}-image.tar"

    @property
    def base_name(self) -> str:
        """A name that changes with the ingredients of the base."""
        return hashlib.sha256(" ".join((SUITE, *self.packages)).encode()).hexdigest()[:12]

    @property
    def base(self) -> str:
        """The image that it is built upon."""
        return f"localhost/{self.name}-base:{self.base_name}"


ONEWRITER = Image(
    name="onewriter",
    dockerfile="Dockerfile",
    requirements="requirements/image.txt",
    packages=PYTHON,
    sources=("core", "broker", "client", "operator", "pipeline"),
    wheels="dist/wheels",
)
SPARK = Image(
    name="onewriter-spark",
    dockerfile="Dockerfile.spark",
    requirements="requirements/spark-image.txt",
    packages=(*PYTHON, "openjdk-17-jre-headless"),
    sources=("core", "pipeline"),
    wheels="dist/spark-wheels",
    in_layers=True,
)
IMAGES = {image.name: image for image in (ONEWRITER, SPARK)}
TAG = ONEWRITER.tag


class CannotBuild(Exception):
    """The image cannot be built here. The text says what to do."""


def missing() -> list[str]:
    """Return why no image can be built here, one sentence each."""
    if _docker_answers() or all(map(shutil.which, TOOLS)):
        return []
    if os.geteuid() == 0 and shutil.which("apt-get"):
        return []
    return [f"Docker, or as root: apt-get install -y {' '.join(TOOLS)}"]


def archive(image: Image = ONEWRITER) -> Path:
    """Return the archive, built if it is missing or older than its sources. Raises CannotBuild."""
    image.archive.parent.mkdir(exist_ok=True)
    with locked(image.archive.parent / ".image.lock", BUILD_SECONDS):
        fingerprint = _fingerprint(image)
        noted = image.archive.with_suffix(".sources")
        if not (image.archive.exists() and noted.exists() and noted.read_text() == fingerprint):
            image.archive.unlink(missing_ok=True)
            if _docker_answers():
                _by_docker(image)
            else:
                _by_buildah(image, fingerprint)
            noted.write_text(fingerprint)
    return image.archive


def _fingerprint(image: Image) -> str:
    """Return a digest that changes whenever the image would."""
    digest = hashlib.sha256()
    for name in (
        image.dockerfile,
        ".dockerignore",
        "pyproject.toml",
        *LISTS,
        image.requirements,
        *image.sources,
    ):
        path = ROOT / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def _docker_answers() -> bool:
    if shutil.which("docker") is None:
        return False
    requests = ["docker", "version", "--format", "{{.Server.Version}}"]
    return commands.run(requests, seconds=ANSWER_SECONDS).returncode == 0


def _by_docker(image: Image) -> None:
    build = ["docker", "build", f"--file={ROOT / image.dockerfile}", "--tag", image.tag]
    _run([*build, f"--build-arg=BASE={_pinned_base()}", str(ROOT)])
    _run(["docker", "save", "--output", str(image.archive), image.tag])


def _pinned_base() -> str:
    """Return the base image by its digest: ``BASE`` of the environment, or the present image of the default tag."""
    base = os.environ.get("BASE", DOCKER_BASE)
    if "@sha256:" in base:
        return base
    _run(["docker", "pull", "--quiet", base])
    inspect = ["docker", "image", "inspect", "--format", "{{index .RepoDigests 0}}", base]
    return _run(inspect).stdout.strip()


def _by_buildah(image: Image, fingerprint: str) -> None:
    _get_tools()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onewriter" / "image"
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / "lock", BUILD_SECONDS):  # other checkouts build here too
        kept = cache / f"{image.name}-image-{fingerprint[:12]}.tar"
        if not _is_of_today(kept):
            for older in cache.glob(f"{image.name}-image-*.tar"):
                older.unlink()
            _build(image, cache, kept)
        _lay(kept, image.archive)


def _build(image: Image, cache: Path, target: Path) -> None:
    _make_base(image, cache)
    context = _lay_context(image, cache)
    unfinished = cache / "unfinished-image.tar"
    unfinished.unlink(missing_ok=True)
    _buildah(
        cache,
        "bud",
        "--isolation=chroot",
        f"--build-arg=BASE={image.base}",
        "--format=docker",
        f"--file={context / image.dockerfile}",
        f"--tag={image.tag}",
        f"--layers={str(image.in_layers).lower()}",
        str(context),
    )
    shutil.rmtree(context)
    _buildah(cache, "push", image.tag, f"docker-archive:{unfinished}:{image.tag}")
    if not image.in_layers:
        _buildah(cache, "rmi", image.tag)
    unfinished.rename(target)


def _lay_context(image: Image, cache: Path) -> Path:
    """Make a copy of the sources with the wheels to install."""
    context = cache / "context"
    shutil.rmtree(context, ignore_errors=True)
    context.mkdir()
    for name in (image.dockerfile, *CONTEXT):
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, context / name, ignore=ignored)
        else:
            shutil.copy2(source, context / name)
    _lay_wheels(image, cache, context)
    for path in context.rglob("*"):
        os.utime(path, (FILES_TIME, FILES_TIME), follow_symlinks=False)
    return context


def _is_of_today(path: Path) -> bool:
    """Whether it exists and is at most a day old; the foreign packages in it are as recent."""
    return path.exists() and time.time_ns() / 1e9 - path.stat().st_mtime < DAY_SECONDS


def _lay(source: Path, target: Path) -> None:
    """Link the file at a second place, or copy it if that is another disk."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _get_tools() -> None:
    lacking = [name for name in TOOLS if shutil.which(name) is None]
    if not lacking:
        return
    if missing():
        raise CannotBuild(f"the image needs {missing()[0]}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    _run(["apt-get", "update"], environment)
    _run(["apt-get", "install", "--yes", "--no-install-recommends", *lacking], environment)


def _lay_wheels(image: Image, cache: Path, context: Path) -> None:
    """Lay out every package that the image and its build install, fetched once for each version of the lists."""
    lists = [ROOT / name for name in (*LISTS[1:], image.requirements)]
    wanted = hashlib.sha256(b"".join(each.read_bytes() for each in lists)).hexdigest()[:12]
    wheels = context / image.wheels
    wheels.mkdir(parents=True, exist_ok=True)
    kept = cache / f"{wheels.name}-{wanted}"
    if not kept.exists():
        for older in cache.glob(f"{wheels.name}-*"):
            shutil.rmtree(older)
        _buildah(cache, "rmi", "--prune")  # layers that are renewed here
        unfinished = cache / "unfinished-wheels"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        _download(image, cache, context, unfinished)
        unfinished.rename(kept)
    for wheel in kept.iterdir():
        _lay(wheel, wheels / wheel.name)


def _download(image: Image, cache: Path, context: Path, target: Path) -> None:
    """Let the base's own Python choose the wheels, from pip's index here; pip checks every hash."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    authority = _run([*pip, "config", "get", "global.cert"], check=False).stdout.strip()
    index = _run([*pip, "config", "get", "global.index-url"], check=False).stdout.strip()
    shared = [
        f"--volume={target}:/wheels",
        f"--volume={context / 'requirements'}:/requirements:ro",
        f"--volume={authority or '/etc/ssl/certs/ca-certificates.crt'}:/run/authority.crt:ro",
        "--env=PIP_CERT=/run/authority.crt",
        *([f"--env=PIP_INDEX_URL={index}"] if index else []),
        *(f"--env={name}" for name in PROXIES if name in os.environ),
    ]
    pip_in_base = "/venv/bin/pip --quiet --disable-pip-version-check"
    lists = [f"/{name}" for name in (*LISTS[1:], image.requirements)]
    script = " && ".join(
        [
            "python3 -m venv /venv",
            f"{pip_in_base} install --require-hashes --requirement {lists[0]}",
            *(
                f"{pip_in_base} download --no-build-isolation --require-hashes --dest /wheels --requirement {each}"
                for each in lists
            ),
        ]
    )
    container = _buildah(cache, "from", image.base).stdout.strip()
    try:
        _buildah(cache, "run", "--isolation=chroot", *shared, container, "sh", "-c", script)
    finally:
        _buildah(cache, "rm", container)


def _make_base(image: Image, cache: Path) -> None:
    """Make the base image once: a small Debian with Python and the further packages."""
    found = _buildah(cache, "images", "--quiet", image.base, check=False)
    if found.returncode == 0 and found.stdout.strip():
        return
    root = cache / f"base-{image.base_name}.tar"
    if not root.exists():
        unfinished = cache / "unfinished-base.tar"
        packages = ",".join(image.packages)
        _run([
            "mmdebstrap", "--variant=essential", f"--include={packages}", SUITE, str(unfinished),
        ])  # fmt: skip
        unfinished.rename(root)
    container = _buildah(cache, "from", "scratch").stdout.strip()
    _buildah(cache, "add", container, str(root), "/")
    _buildah(cache, "commit", "--rm", container, image.base)


def _buildah(cache: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run buildah with its own storage, which works without overlay mounts."""
    command = ["buildah", f"--root={cache / 'storage'}", f"--runroot={cache / 'run'}", *arguments]
    return _run(command, {**os.environ, "STORAGE_DRIVER": "vfs"}, check=check)


def _run(
    command: Sequence[str], environment: dict[str, str] | None = None, *, check: bool = True
) -> subprocess.CompletedProcess[str]:
    try:
        done = commands.run(command, environment=environment, seconds=STEP_SECONDS)
    except commands.CommandHangs as error:
        raise CannotBuild(f"{error}\nis the package index, or the mirror, reachable?") from None
    if check and done.returncode != 0:
        text = f"{done.stdout[-1500:]}{done.stderr[-2500:]}"
        raise CannotBuild(f"{' '.join(command[:3])} ... failed:\n{text}")
    return done


def unpack(target: Path, image: Image = ONEWRITER) -> Path:
    """Unpack the image's file system, to inspect it or to run it without a runtime."""
    with tarfile.open(archive(image)) as whole:
        for layer in _layers(whole):
            content = whole.extractfile(layer)
            with tarfile.open(fileobj=content) as files:
                # Python 3.11.3 and earlier do not know it as an argument.
                files.extraction_filter = getattr(tarfile, "tar_filter", None)
                files.extractall(target)  # noqa: S202 - an image that was built here
    target.chmod(0o755)  # it is the root directory of every user
    return target


def write_bill(image: Image) -> Path:
    """Copy the software bill of materials out of the archive, beside it. Raises CannotBuild."""
    with tarfile.open(archive(image)) as whole:
        for layer in _layers(whole):
            with tarfile.open(fileobj=whole.extractfile(layer)) as files:
                if BILL in files.getnames() and (content := files.extractfile(BILL)) is not None:
                    target = image.archive.parent / f"{image.name}.cdx.json"
                    target.write_bytes(content.read())
                    return target
    raise CannotBuild(f"{image.archive} has no {BILL}")


def _layers(whole: tarfile.TarFile) -> list[str]:
    manifest = whole.extractfile("manifest.json")
    if manifest is None:
        raise CannotBuild("the archive has no manifest")
    layers: list[str] = json.load(manifest)[0]["Layers"]
    return layers


def main(names: Sequence[str]) -> int:
    unknown = set(names) - set(IMAGES)
    if unknown:
        print(f"no such image: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    try:
        for name in names or (ONEWRITER.name,):
            print(archive(IMAGES[name]))
            print(write_bill(IMAGES[name]))
    except CannotBuild as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
