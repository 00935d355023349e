"""Extracts the prose of a file: paragraphs of pages, comments, docstrings, messages, descriptions of CRDs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

KINDS = ("docs", "values", "crds", "messages", "docstrings", "comments")

PAGES = ("*.md", "docs/**/*.md", "bench/*.md", "charts/**/*.md", "requirements/*.md")
HISTORY = ("CHANGELOG.md",)
"""Pages about the past, which keep their text."""

PACKAGES = ("core", "broker", "client", "operator", "pipeline", "charts", "examples")
GENERATED = "_pb2.py"
VALUES = "charts/onewriter/values.yaml"

MESSAGE_WORDS_MIN = 3
"""A shorter string is a name or a keyword."""

FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`]*`")
COMMENT = re.compile(r"^(?:.*\s)?#(?: (.*))?$")
LINE_OF_COMMENT = re.compile(r"^\s*#(?: (.*))?$")


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of prose; ``line`` is where it begins in its file."""

    line: int
    kind: str
    text: str


def texts_of_tree(root: Path) -> Iterator[tuple[str, Text]]:
    """All texts that the rules apply to, each with the path of its file."""
    for path in pages(root):
        yield from ((path, text) for text in page_texts((root / path).read_text()))
    yield from ((VALUES, text) for text in comments((root / VALUES).read_text(), "values"))
    for file in sorted((root / "crds").glob("*.yaml")):
        name = str(file.relative_to(root))
        yield from ((name, text) for text in descriptions(file.read_text()))
    for path in modules(root):
        yield from ((path, text) for text in module_texts((root / path).read_text()))


def pages(root: Path) -> list[str]:
    found = {str(file.relative_to(root)) for glob in PAGES for file in root.glob(glob)}
    return sorted(found - set(HISTORY))


def modules(root: Path) -> list[str]:
    files = [file for package in PACKAGES for file in (root / package).glob("**/*.py")]
    return sorted(str(file.relative_to(root)) for file in files if GENERATED not in file.name)


def page_texts(page: str) -> Iterator[Text]:
    """The page as one text, with its code blanked out."""
    yield Text(1, "docs", CODE.sub(blanked, FENCED.sub(blanked, page)))


def blanked(code: re.Match[str]) -> str:
    """Code without its characters: it keeps its lines, and counts as a word."""
    return re.sub(r"[^\n]", "", code[0]) or "CODE"


def descriptions(manifest: str) -> Iterator[Text]:
    """The descriptions of fields in a CRD."""
    root = yaml.compose(manifest, Loader=yaml.CSafeLoader)
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, yaml.SequenceNode):
            waiting.extend(node.value)
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                waiting.append(value)
                if key.value == "description" and isinstance(value, yaml.ScalarNode):
                    yield Text(value.start_mark.line + 1, "crds", value.value)


def comments(source: str, kind: str = "comments") -> Iterator[Text]:
    """Comments; consecutive lines of comment are one text."""
    first, lines = 0, list[str]()
    for number, line in enumerate([*source.splitlines(), ""], 1):
        whole = LINE_OF_COMMENT.match(line)
        if whole:
            first = first if lines else number
            lines.append(whole[1] or "")
            continue
        if lines:
            yield Text(first, kind, "\n".join(lines))
            lines = []
        beside = re.search(r"\S  # (.*)$", line)
        if beside:
            yield Text(number, kind, beside[1])


def module_texts(source: str) -> Iterator[Text]:
    """Docstrings, comments and messages of a module. The docstring of a command is a message: its help."""
    yield from comments(source)
    tree = ast.parse(source)
    docstrings = set[int]()
    helps = set[int]()
    inner = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and is_text(node.value):
            docstrings.add(id(node.value))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_command(node):
            first = node.body[0]
            if isinstance(first, ast.Expr):
                helps.add(id(first.value))
        if isinstance(node, ast.JoinedStr):
            inner.update(id(part) for part in node.values)
    for node in ast.walk(tree):
        if id(node) in inner:
            continue
        text = text_of(node)
        if text is None or not isinstance(node, ast.expr):
            continue
        if id(node) in docstrings:
            yield Text(
                node.lineno, "messages" if id(node) in helps else "docstrings", uncoded(text)
            )
        elif len(text.split()) >= MESSAGE_WORDS_MIN:
            yield Text(node.lineno, "messages", text)


def uncoded(text: str) -> str:
    return re.sub(r"``[^`]*``", blanked, text)


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def is_command(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether click shows the docstring of the function to users."""
    names = [ast.unparse(each).partition("(")[0] for each in function.decorator_list]
    return any(name.rpartition(".")[2] in {"command", "group"} for name in names)


def text_of(node: ast.AST) -> str | None:
    """The text of a string; values in an f-string count as a word."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [each.value if isinstance(each, ast.Constant) else "X" for each in node.values]
        return "".join(str(part) for part in parts)
    return None
