"""Every public name of the SDK is documented, and has a docstring of its own."""

from __future__ import annotations

import ast
import inspect
import re
from itertools import pairwise
from pathlib import Path

import pytest

import onewriter
import onewriter.state
import onewriter.sync

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "client" / "onewriter"
PAGES = [ROOT / "docs" / page for page in ("client.md", "shared-state.md", "sync.md")]
PAGES += (ROOT / "docs" / "recipes").glob("*.md")

WORDS_MIN = 4
"""Fewer do not say more than the name."""

MODULES = (onewriter, onewriter.state, onewriter.sync)
NAMES = [(module.__name__, name) for module in MODULES for name in module.__all__]


def constants() -> dict[str, str]:
    """What stands under each assignment at the top of a module: constants have no ``__doc__``."""
    found = {}
    for path in SOURCES.rglob("*.py"):
        body = ast.parse(path.read_text()).body
        for one, behind in pairwise(body):
            match one, behind:
                case (
                    ast.Assign(targets=[ast.Name(id=name)])
                    | ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[name] = text
                case _:
                    pass
    return found


CONSTANTS = constants()


def described(module: str, name: str) -> str:
    """Its own docstring: an inherited one, or the one that dataclass makes up, describes nothing."""
    value = getattr(__import__(module, fromlist=[name]), name)
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return CONSTANTS.get(name, "")
    text = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    return "" if text is None or text.startswith(f"{name}(") else text


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_every_public_name_has_a_docstring_of_its_own(module: str, name: str) -> None:
    answer = {word.lower() for word in re.findall(r"\w+", described(module, name))}
    own = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}
    assert len(answer - own) >= WORDS_MIN, f"{module}.{name} has no docstring that says what it is"


@pytest.mark.parametrize("name", sorted({*onewriter.__all__, *onewriter.state.__all__}))
def test_the_documentation_mentions_it(name: str) -> None:
    text = "".join(page.read_text() for page in PAGES)
    assert re.search(rf"\b{name}\b", text), f"{name} is in no page of the SDK"


@pytest.mark.parametrize(
    "name", [n for n in onewriter.__all__ if inspect.isclass(getattr(onewriter, n))]
)
def test_every_public_method_has_a_docstring(name: str) -> None:
    undescribed = [
        method
        for method, value in vars(getattr(onewriter, name)).items()
        if not method.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, property))
        and not inspect.getdoc(value)
    ]
    assert undescribed == []
