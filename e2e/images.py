"""The product's image and, on top of it, one with the stock Pulsar client: one archive for both.

    python -m e2e.images

The second image is the first with one more layer, so that nodes store the common layers once. In its containers tests
can shift the wall clock of a pod (``clock.c``). The archive has the format of ``docker save``: for ``ctr images import``, ``kind load image-archive``,
``docker load``.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.metadata
import io
import json
import re
import shutil
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from tests.cluster import commands, images

TAG = "localhost/onewriter-e2e:dev"
ARCHIVE = images.ROOT / "dist" / "onewriter-e2e.tar"
DIRECTORY = "opt/stock"
"""The directory of the stock client in the image; PYTHONPATH names it."""

CLOCK_SOURCE = Path(__file__).with_name("clock.c")
CLOCK = "opt/clock/clock.so"
PRELOAD = "etc/ld.so.preload"
"""The file that names what every process loads first."""

LAYER = "stock-client.tar"
CLIENT = "pulsar-client"
DOWNLOAD_SECONDS = 300.0
"""Time limit for the installation of the stock client."""

COMPILE_SECONDS = 120.0

_PYTHON = re.compile(r"opt/onewriter/lib/python(3\.\d+)/")

Json = dict[str, Any]


def archive() -> Path:
    """Return the archive, built if it is missing or older than the product's. Raises CannotBuild."""
    base = images.archive()
    sources = base.with_suffix(".sources").read_text()
    wanted = f"{sources} {_requirement()} {_digest(Path(__file__))} {_digest(CLOCK_SOURCE)}"
    noted = ARCHIVE.with_suffix(".sources")
    if not (ARCHIVE.exists() and noted.exists() and noted.read_text() == wanted):
        noted.unlink(missing_ok=True)
        _build(base)
        noted.write_text(wanted)
    return ARCHIVE


def _build(base: Path) -> None:
    with tarfile.open(base) as whole, tarfile.open(ARCHIVE, "w") as target:
        (image,) = _document(whole, "manifest.json")
        configuration = _document(whole, image["Config"])
        layer = _layer(_python(whole, image["Layers"]))
        richer = _with_layer(configuration, layer)
        name = f"{hashlib.sha256(richer).hexdigest()}.json"
        for part in (image["Config"], *image["Layers"]):
            target.addfile(whole.getmember(part), whole.extractfile(part))
        _add(target, LAYER, layer)
        _add(target, name, richer)
        layers = [*image["Layers"], LAYER]
        manifest = [image, {"Config": name, "RepoTags": [TAG], "Layers": layers}]
        _add(target, "manifest.json", json.dumps(manifest).encode())


def _requirement() -> str:
    """Return the requirement of the stock client, in the version that all other tests use."""
    return f"{CLIENT}=={importlib.metadata.version(CLIENT)}"


def _document(whole: tarfile.TarFile, name: str) -> Any:
    found = whole.extractfile(name)
    if found is None:
        raise images.CannotBuild(f"the product's archive has no {name}")
    return json.load(found)


def _python(whole: tarfile.TarFile, layers: list[str]) -> str:
    """Return the version of Python that the image runs: the client is compiled for it."""
    for name in reversed(layers):
        with tarfile.open(fileobj=whole.extractfile(name)) as layer:
            for member in layer:
                found = _PYTHON.match(member.name.lstrip("./"))
                if found:
                    return found[1]
    raise images.CannotBuild("the product's image has no Python in /opt/onewriter")


def _layer(python: str) -> bytes:
    """Return a layer with the stock client and its dependencies, unpacked."""
    buffer = io.BytesIO()
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(fileobj=buffer, mode="w") as layer:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
        options = ["--quiet", "--only-binary=:all:", f"--python-version={python}", "--dest"]
        try:
            done = commands.run(
                [*command, *options, scratch, _requirement()], seconds=DOWNLOAD_SECONDS
            )
        except commands.CommandHangs as error:
            raise images.CannotBuild(f"{error}\nis the package index reachable?") from None
        if done.returncode != 0:
            raise images.CannotBuild(f"{_requirement()} for Python {python}:\n{done.stderr}")
        for wheel in sorted(Path(scratch).glob("*.whl")):
            with zipfile.ZipFile(wheel) as packed:
                for name in packed.namelist():
                    if not name.endswith("/"):
                        _add(layer, f"{DIRECTORY}/{name}", packed.read(name))
        _add(layer, CLOCK, clock_library(Path(scratch)))
        _add(layer, PRELOAD, f"/{CLOCK}\n".encode())
    return buffer.getvalue()


def clock_library(scratch: Path, source: Path = CLOCK_SOURCE) -> bytes:
    """Return the compiled ``clock.c``. Raises CannotBuild."""
    target = scratch / "clock.so"
    if shutil.which("gcc") is None:
        raise images.CannotBuild("packages: apt-get install -y gcc libc6-dev")
    options = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror"]
    command = ["gcc", *options, "-o", str(target), str(source)]
    done = commands.run(command, seconds=COMPILE_SECONDS)
    if done.returncode != 0:
        raise images.CannotBuild(f"{source}: {done.stderr}")
    return target.read_bytes()


def _with_layer(configuration: Json, layer: bytes) -> bytes:
    richer = copy.deepcopy(configuration)
    richer["rootfs"]["diff_ids"].append(f"sha256:{hashlib.sha256(layer).hexdigest()}")
    richer.setdefault("history", []).append({"created_by": f"pip install {_requirement()}"})
    richer["config"]["Env"] = [*richer["config"].get("Env", ()), f"PYTHONPATH=/{DIRECTORY}"]
    return json.dumps(richer).encode()


def _add(target: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o755
    target.addfile(entry, io.BytesIO(content))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> int:
    try:
        print(archive())
    except images.CannotBuild as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
