"""Brokers of earlier releases: their code, kept as one archive per release that Python imports from.

``python -m tests.compatibility.releases NAME`` keeps the broker of the present tree.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from onewriter_testing.processes import LocalBrokers

ROOT = Path(__file__).resolve().parents[2]
RELEASES = Path(__file__).resolve().parent / "releases"
PACKAGES = ("core/onewriter_core", "broker/onewriter_broker")
FIXED_TIME = (2020, 1, 1, 0, 0, 0)
"""Of all files in an archive, so that it depends on their contents alone."""


def archive_of(name: str) -> Path:
    return RELEASES / f"{name}.zip"


def keep(name: str) -> Path:
    """Write the archive of a release; its path."""
    target = archive_of(name)
    target.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for package in PACKAGES:
            folder = ROOT / package
            for path in sorted(folder.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyi":
                    entry = zipfile.ZipInfo(str(path.relative_to(folder.parent)), FIXED_TIME)
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    archive.writestr(entry, path.read_bytes())
    return target


class MixedBrokers(LocalBrokers):
    """Brokers without a supervisor, some of an earlier release and some of the present tree.

    ``earlier`` are the numbers of those that start with the code of ``release`` from now on.
    """

    def __init__(self, directory: Path, release: str, **options: Any) -> None:
        super().__init__(directory, supervised=False, **options)
        self.earlier: Collection[int] = range(len(self.names))
        self._archive = archive_of(release)

    def _bare_command(self, number: int) -> list[str]:
        command = super()._bare_command(number)
        if number in self.earlier:
            return ["env", f"PYTHONPATH={self._archive}", *command]
        return command


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="the release, for example 0.1.0")
    target = keep(parser.parse_args(arguments).name)
    print(f"{target}: {target.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
