"""Write a compatibility fixture with the present tree: ``python -m tests.compatibility.write NAME``.

The fixture is one archive, ``tests/compatibility/fixtures/NAME.tar.xz``: the data directory of ``onewriter up`` (anchor,
append-only file, settings), tables in both formats, and what ``content.observe`` said of them. Write one for each
release, and never change an older one.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.compatibility.content import MANIFESTS, fill, observe, values_of

from onewriter_testing.processes import LocalBrokers

FIXTURES = Path(__file__).resolve().parent / "fixtures"
OBSERVED = "observed.json"
LEFT_OUT = ("lock", "run", "valkey.sock", "temp")
"""Files of a data directory that belong to the running processes."""


def write(name: str) -> Path:
    """Write a fixture; the path of its archive."""
    FIXTURES.mkdir(exist_ok=True)
    target = FIXTURES / f"{name}.tar.xz"
    with tempfile.TemporaryDirectory(prefix="onewriter-fixture-") as folder:
        root = Path(folder)
        brokers = LocalBrokers(root, manifests=MANIFESTS)
        try:
            brokers.start()
            fill(brokers, root / "tables")
            observed = observe(brokers) | {"tables": values_of(root / "tables")}
        finally:
            brokers.stop()
        with tarfile.open(target, "w:xz", preset=9) as archive:
            for path in sorted(root.glob("data/**/*")) + sorted(root.glob("tables/**/*")):
                if path.is_file() and not any(part in LEFT_OUT for part in path.parts):
                    _add(archive, str(path.relative_to(root)), path.read_bytes())
            _add(archive, OBSERVED, json.dumps(observed, indent=1, sort_keys=True).encode())
    return target


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """Owners and times are left out, so the archive depends on the content alone."""
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    entry.mode = 0o600
    archive.addfile(entry, io.BytesIO(content))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="the release, for example 0.1.0")
    target = write(parser.parse_args(arguments).name)
    print(f"{target}: {target.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
