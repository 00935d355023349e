"""``make kind``: a kind cluster for the suite, with the images loaded.

    python -m e2e.kind

Needs Docker, kind and kubectl. Creates the cluster once and loads the images each time.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from e2e import images
from tests.cluster import images as product
from tests.cluster.images import CannotBuild

NAME = "onewriter"
CONFIGURATION = Path(__file__).with_name("kind.yaml")
TOOLS = ("docker", "kind", "kubectl")


def main() -> int:
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    if lacking:
        print(f"make kind needs {', '.join(lacking)}: https://kind.sigs.k8s.io", file=sys.stderr)
        return 1
    try:
        archives = [images.archive(), product.archive(product.SPARK)]
    except CannotBuild as error:
        print(error, file=sys.stderr)
        return 1
    made = subprocess.run(["kind", "get", "clusters"], capture_output=True, text=True, check=True)
    if NAME not in made.stdout.split():
        options = [f"--name={NAME}", f"--config={CONFIGURATION}", "--wait=3m"]
        subprocess.run(["kind", "create", "cluster", *options], check=True)
    for archive in archives:
        load = ["kind", "load", "image-archive", str(archive), f"--name={NAME}"]
        subprocess.run(load, check=True)
    print("now: USE_EXISTING_CLUSTER=true make e2e")
    return 0


if __name__ == "__main__":
    sys.exit(main())
