"""What the linters cannot say: the tree's own rules."""

from __future__ import annotations

import ast
import contextlib
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def tracked(pattern: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [ROOT / name for name in listed.stdout.split() if (ROOT / name).exists()]


def modules() -> list[Path]:
    """All of ours: tests are read, too."""
    return [path for path in tracked("*.py") if not path.name.endswith("_pb2.py")]


def test_operator_directory_is_no_package() -> None:
    # One stray operator/__init__.py shadows the standard library for every Python started here.
    assert not (ROOT / "operator" / "__init__.py").exists()


def test_every_module_opens_with_a_docstring() -> None:
    silent = [path for path in modules() if not path.read_text().startswith('"""')]
    assert silent == []


def test_nothing_is_left_open() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked("*.py")
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if marks.search(line)
    ]
    assert found == []


def test_every_test_file_has_a_name_of_its_own() -> None:
    names = [path.name for path in tracked("tests/*.py") if path.name.startswith("test_")]
    assert len(names) == len(set(names))


SAME_CLASS_NAME = {"onewriter": "onewriter/sync/", "onewriter_core": "onewriter_core/kubernetes/"}
"""Packages in which a folder has classes that are named after others on purpose: the facade without asyncio, and the
values that are parsed from objects of Kubernetes, named after the models of the same parts in ``onewriter_core.api``."""


def test_a_package_defines_each_public_class_name_once() -> None:
    found: dict[tuple[str, str], list[str]] = {}
    for path in modules():
        folder, _, inside = str(path.relative_to(ROOT)).partition("/")
        package = inside.partition("/")[0]
        if folder not in {"core", "broker", "client", "operator", "pipeline"}:
            continue
        facade = SAME_CLASS_NAME.get(package)
        if facade is not None and inside.startswith(facade):
            package = facade
        for each in ast.parse(path.read_text()).body:
            if isinstance(each, ast.ClassDef) and not each.name.startswith("_"):
                found.setdefault((package, each.name), []).append(inside)
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`\n]*`")


def anchors(page: Path) -> set[str]:
    """What may stand behind the # of a link to the page, by GitHub's rule."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.+)$", FENCED.sub("", page.read_text()), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip()).lower()
        plain = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = sum(each == plain or each.startswith(f"{plain}-") for each in found)
        found.add(f"{plain}-{number}" if plain in found else plain)
    return found


def broken_links(page: Path) -> list[str]:
    """The links of a page that lead to no file or heading of the tree."""
    broken = []
    for target in LINK.findall(CODE.sub("", FENCED.sub("", page.read_text()))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, heading = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        exists = other.exists()
        if exists and heading and other.suffix == ".md":
            exists = heading in anchors(other)
        if not exists:
            broken.append(target)
    return broken


def test_every_link_within_the_tree_leads_somewhere() -> None:
    pages = {str(page.relative_to(ROOT)): broken_links(page) for page in tracked("*.md")}
    assert {page: links for page, links in pages.items() if links} == {}


PATCHED_CONSTANTS = {"tests/script_bugs.py", "tests/test_tidy.py"}
"""Files that may replace constants: planted bugs replace the scripts that the fake server executes; this file has examples."""


CONSTANT = re.compile(r"_?[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")


def patched_constants(tree: ast.AST) -> list[int]:
    """The lines that replace an upper-case attribute of another module: by setattr, patch, or assignment.

    A call with a computed name counts if the file has a string that is the name of a constant. A string that contains a
    program is read as well; its lines count from the beginning of the string.
    """
    nodes = list(ast.walk(tree))
    strings = [n for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    has_names = any(CONSTANT.fullmatch(str(each.value)) for each in strings)
    found = []
    for node in nodes:
        names: list[str] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if called in {"setattr", "delattr", "patch", "object"}:
                words = [each.value for each in node.args[:2] if isinstance(each, ast.Constant)]
                names = [word.rpartition(".")[2] for word in words if isinstance(word, str)]
                is_computed = called == "setattr" and not words and len(node.args) == 3
                if is_computed and has_names and isinstance(node.func, ast.Attribute):
                    found.append(node.lineno)
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.attr for target in targets if isinstance(target, ast.Attribute)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found += [node.lineno + line - 1 for line in patched_constants(program(node.value))]
        if any(name.isidentifier() and name.isupper() for name in names):
            found.append(node.lineno)  # type: ignore[attr-defined]  # calls and assignments have one
    return sorted(found)


def program(text: str) -> ast.AST:
    """The program that a string contains; an empty one if it contains none."""
    if "\n" in text and re.search(r"^(?:import|from) |^\S+ ?=", text, re.MULTILINE):
        with contextlib.suppress(SyntaxError):
            return ast.parse(text)
    return ast.Module([], [])


def test_no_test_replaces_a_constant() -> None:
    """A limit is a parameter of the object or function that uses it, with the constant as its default."""
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in ("tests", "e2e", "bench")
        for path in tracked(f"{folder}/*.py")
        if str(path.relative_to(ROOT)) not in PATCHED_CONSTANTS
        for line in patched_constants(ast.parse(path.read_text()))
    ]
    assert found == []


def test_replaced_constants_are_found() -> None:
    text = """
monkeypatch.setattr(module, "PARTS_MAX", 2)
monkeypatch.setattr("package.module._PARTS_MAX", 2)
module.PARTS_MAX = 2
monkeypatch.setattr(module, "parts", 2)
self.parts = PARTS_MAX
monkeypatch.setenv("PARTS_MAX", "2")
"""
    assert patched_constants(ast.parse(text)) == [2, 3, 4]
    computed = """
for module, name in ((parts, "PARTS_MAX"), (parts, "PART_BYTES")):
    monkeypatch.setattr(module, name, 2)
"""
    assert patched_constants(ast.parse(computed)) == [3]
    assert patched_constants(ast.parse(computed.replace("PART", "part"))) == []
    inside = """
PROGRAM = old.replace("run", "from package import parts\\nparts.PARTS_MAX = 2\\nrun")
"""
    assert patched_constants(ast.parse(inside)) == [3]
