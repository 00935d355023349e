"""Pages name files and folders of the repository, and Python names in diagrams, that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md")),
    *sorted(each for each in (ROOT / "docs").glob("*.md")),
]
FOLDERS = (
    "core",
    "broker",
    "client",
    "operator",
    "pipeline",
    "tests",
    "docs",
    "charts",
    "bench",
    "e2e",
    "examples",
    "requirements",
    "crds",
    "image",
)
NAMED = re.compile(
    rf"`((?:{'|'.join(FOLDERS)})/[\w./-]+?(?:/|\.(?:py|lua|toml|ya?ml|md|proto|txt|sh|json)))`"
)


def named(page: Path) -> Iterator[str]:
    """The paths that a page names as code; ``...`` stands for a package."""
    outside = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for each in NAMED.findall(outside):
        yield each.replace("...", "*")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_and_folders_exist(page: Path) -> None:
    missing = [each for each in named(page) if not list(ROOT.glob(each.rstrip("/")))]
    assert not missing, missing


PACKAGES = (
    "core/onewriter_core",
    "core/onewriter_http",
    "broker/onewriter_broker",
    "client/onewriter",
    "operator/onewriter_operator",
    "pipeline/onewriter_pipeline",
    "pipeline/pyspark_onewriter",
)
PROPERTIES = {"onewriter.guard"}
"""Dotted names in diagrams that are properties of the wire protocol."""

DOTTED = re.compile(r"(?<![\w./])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")


def defined(module: Path) -> set[str]:
    """The functions, classes, methods and constants of a module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def resolves(name: str, modules: dict[str, set[str]]) -> bool:
    """Whether ``name`` is the end of a module's path, followed by names that this module defines.

    A name may also begin with a class: ``TopicLog.roll_back``.
    """
    words = name.split(".")
    for split in range(len(words) + 1):
        path, names = ".".join(words[:split]), set(words[split:])
        if not path and not words[0][0].isupper():
            continue
        for module, defines in modules.items():
            if f".{module}".endswith(f".{path}" if path else "") and names <= defines:
                return True
    return False


def modules_of_packages() -> dict[str, set[str]]:
    return {
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."): defined(path)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if not path.name.endswith("_pb2.py")
    }


def in_diagrams(page: Path) -> set[str]:
    """The dotted names in the diagrams of a page. Field names of Kubernetes objects are camelCase."""
    diagrams = re.findall(r"^```\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    found = {name for diagram in diagrams for name in DOTTED.findall(diagram)}
    return {each for each in found if not re.search(r"\.[a-z]+[A-Z]", each)} - PROPERTIES


def test_names_in_the_diagrams_exist() -> None:
    names = in_diagrams(ROOT / "ARCHITECTURE.md")
    assert len(names) > 30
    scripts = {path.name for path in (ROOT / "broker").rglob("*.lua")}
    modules = modules_of_packages()
    missing = [each for each in names if each not in scripts and not resolves(each, modules)]
    assert not missing, sorted(missing)


def test_names_that_do_not_exist_are_found() -> None:
    modules = modules_of_packages()
    assert resolves("topic.machine.step", modules)
    assert not resolves("topic.machine.stride", modules)
    assert not resolves("reconcile.questions._remove", modules)
    assert not resolves("TopicLog.forget_everything", modules)
