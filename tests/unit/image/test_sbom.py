"""The bill of materials: what it lists of an installation, and that the lists of packages are hashed."""

from __future__ import annotations

import json
import re
import runpy
import sysconfig
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
LISTS = sorted((ROOT / "requirements").glob("*.txt"))
SITE = sysconfig.get_path("purelib")
BASE = "python:3.13-slim@sha256:" + "0" * 64


@pytest.fixture(scope="module")
def program() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "image" / "sbom.py"))


def test_the_bill_lists_distributions_packages_and_the_server(
    program: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert program["main"]("onewriter", SITE, BASE) == 0
    bill = json.loads(capsys.readouterr().out)
    purls = {component["purl"] for component in bill["components"]}
    assert f"pkg:pypi/aiohttp@{version('aiohttp')}" in purls
    assert f"pkg:pypi/onewriter@{version('onewriter')}" in purls
    assert any(purl.startswith("pkg:generic/valkey-server@") for purl in purls)
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["properties"] == [
        {"name": "onewriter:base-image", "value": BASE}
    ]


def test_a_removed_debian_package_is_not_listed(program: dict[str, Any]) -> None:
    listing = "libc6:amd64\t2.36-9\tamd64\tinstalled\nnano\t7.2-1\tamd64\tconfig-files\n"
    found = [str(each.purl) for each in program["debian_components"](listing)]
    assert found == ["pkg:deb/debian/libc6@2.36-9?arch=amd64"]


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_every_package_is_pinned_and_hashed(path: Path) -> None:
    entries = re.split(r"(?<!\\)\n", path.read_text())
    packages = [entry for entry in entries if entry and not entry.startswith("#")]
    assert packages
    for entry in packages:
        assert re.match(r"[A-Za-z0-9._-]+==\S+ ", entry), entry.partition("\\")[0]
        assert "--hash=sha256:" in entry, entry.partition("\\")[0]
    assert "://" not in path.read_text()


@pytest.mark.parametrize(
    ("name", "extras"),
    [
        ("run", ("broker", "client", "embedded", "examples")),
        ("image", ("broker", "client", "embedded", "operator")),
        ("spark-image", ("spark",)),
        ("test", ("dev",)),
    ],
)
def test_a_list_has_everything_that_the_project_asks_for(
    name: str, extras: tuple[str, ...]
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"]]
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    listed = {
        _key(line.partition("==")[0])
        for line in (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
        if "==" in line
    }
    names = {_key(re.split(r"[\[<>=!; ]", each)[0]) for each in wanted} - {"onewriter"}
    assert names <= listed, f"run make requirements: {sorted(names - listed)} are missing"


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
