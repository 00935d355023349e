"""Finding a mutant's symbol in a tree, and the text of the file with the bug in it. No file is written here."""

from __future__ import annotations

import ast
from pathlib import Path

import lupa.lua51
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).resolve().parents[2]
"""This checkout."""

ROOTS = ("core", "broker", "client", "operator", "pipeline")
SCRIPTS = Path("broker/onewriter_broker/log/store/scripts")


class LostTarget(Exception):
    """The symbol or the text of a mutant is gone: adapt the mutant to the product."""


def file_of(mutant: Mutant, tree: Path) -> Path:
    """The file that holds the mutant's symbol. Raises LostTarget."""
    kind, _, rest = mutant.target.partition(":")
    if kind == "lua":
        candidates = [tree / SCRIPTS / f"{rest.partition('/')[0]}.lua"]
    else:
        path = kind.replace(".", "/")
        candidates = [
            tree / root / f"{path}{end}" for root in ROOTS for end in (".py", "/__init__.py")
        ]
    found = next((path for path in candidates if path.exists()), None)
    if found is None:
        raise LostTarget(f"{mutant.name}: no file for {mutant.target}")
    return found


def planted(mutant: Mutant, source: str) -> str:
    """The file's source with the bug in it. Raises LostTarget if symbol or text is not there exactly once."""
    is_script = mutant.target.startswith("lua:")
    start, end = _script_span(mutant, source) if is_script else _python_span(mutant, source)
    symbol = source[start:end]
    if (count := symbol.count(mutant.old)) != 1:
        raise LostTarget(
            f"{mutant.name}: {mutant.target} contains its text {count} times instead of once:\n{mutant.old}"
        )
    changed = source[:start] + symbol.replace(mutant.old, mutant.new) + source[end:]
    if changed == source:
        raise LostTarget(f"{mutant.name}: the bug changes nothing")
    _check_compiles(mutant, changed)
    return changed


def _python_span(mutant: Mutant, source: str) -> tuple[int, int]:
    names = mutant.target.partition(":")[2].split(".")
    body: list[ast.stmt] = ast.parse(source).body
    found: ast.stmt | None = None
    for name in names:
        found = next((node for node in body if _defines(node, name)), None)
        if found is None:
            raise LostTarget(f"{mutant.name}: {mutant.target} is not defined")
        body = getattr(found, "body", [])
    assert found is not None
    assert found.end_lineno is not None
    lines = source.splitlines(keepends=True)
    return sum(map(len, lines[: found.lineno - 1])), sum(map(len, lines[: found.end_lineno]))


def _defines(node: ast.stmt, name: str) -> bool:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return node.name == name
        case ast.Assign(targets=[ast.Name(id=found)]) | ast.AnnAssign(target=ast.Name(id=found)):
            return found == name
        case _:
            return False


def _script_span(mutant: Mutant, source: str) -> tuple[int, int]:
    function = mutant.target.partition("/")[2]
    if not function:
        return 0, len(source)
    start = source.find(f"local function {function}(")
    end = source.find("\nend\n", start)
    if start < 0 or end < 0:
        raise LostTarget(f"{mutant.name}: {mutant.target} is not defined")
    return start, end + len("\nend\n")


def _check_compiles(mutant: Mutant, source: str) -> None:
    try:
        if mutant.target.startswith("lua:"):
            lupa.lua51.LuaRuntime().compile(source)
        else:
            ast.parse(source)
    except (SyntaxError, lupa.lua51.LuaError) as error:
        raise LostTarget(f"{mutant.name}: the mutated source does not compile: {error}") from error
