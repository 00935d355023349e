"""Images of one static program in the format of ``docker save``, made without registry and Docker."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster.commands import run

PAUSE = "localhost/pause:1"
"""The image that holds a pod's namespaces."""

COMPILE_SECONDS = 60.0

_PAUSE_SOURCE = """
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void leave(int signal) { _exit(0); }
static void reap(int signal) { while (waitpid(-1, 0, WNOHANG) > 0) {} }
int main(void) {
    signal(SIGTERM, leave);
    signal(SIGINT, leave);
    signal(SIGCHLD, reap);
    for (;;) pause();
}
"""


def write(
    path: Path, tag: str, files: Mapping[str, Path], entrypoint: Sequence[str], *, user: str = ""
) -> Path:
    """Write an archive with one layer. ``files``: path in the image, and the file to copy there."""
    layer = _tar((name, source.read_bytes(), 0o755) for name, source in files.items())
    configuration = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": list(entrypoint), "User": user, "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        "history": [{"created_by": "onewriter tests"}],
    }
    encoded = json.dumps(configuration).encode()
    name = f"{hashlib.sha256(encoded).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [tag], "Layers": ["layer.tar"]}]
    parts = (
        (name, encoded),
        ("layer.tar", layer),
        ("manifest.json", json.dumps(manifest).encode()),
    )
    path.write_bytes(_tar((part, content, 0o644) for part, content in parts))
    return path


def pause(directory: Path) -> Path:
    """Return the archive of PAUSE, compiled here."""
    source = directory / "pause.c"
    source.write_text(_PAUSE_SOURCE)
    program = directory / "pause"
    done = run(["gcc", "-static", "-Os", "-s", "-o", program, source], seconds=COMPILE_SECONDS)
    if done.returncode != 0:
        raise RuntimeError(f"gcc cannot compile {source}: {done.stderr}")
    return write(directory / "pause.tar", PAUSE, {"pause": program}, ["/pause"], user="65535")


def _tar(files: object) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content, mode in files:  # type: ignore[attr-defined]  # an iterable of triples
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
