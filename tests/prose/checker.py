"""Compares the prose of the tree with the rules of the style guide.

``rules.toml`` lists phrases and what to write instead. ``pending.toml`` lists files and folders whose text still
has to be rewritten, by kind of text. An entry that covers no finding any more is an error, so that list only shrinks.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from tests.prose.texts import KINDS, Text, texts_of_tree

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Rule:
    """A phrase to replace. ``reject`` and ``accept`` are examples for its test."""

    pattern: re.Pattern[str]
    write: str
    kinds: tuple[str, ...] = KINDS
    reject: tuple[str, ...] = ()
    accept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """A phrase of the rules in a text of the tree."""

    path: str
    line: int
    kind: str
    phrase: str
    write: str

    def __str__(self) -> str:
        return f'{self.path}:{self.line}: {self.kind}: "{self.phrase}"; write: {self.write}'


@dataclass(frozen=True, slots=True)
class Pending:
    """A file, or the files directly in a folder, whose texts of some kinds are not checked yet."""

    path: str
    kinds: tuple[str, ...]

    def covers(self, finding: Finding) -> bool:
        paths = (finding.path, str(PurePath(finding.path).parent))
        return self.path in paths and finding.kind in self.kinds

    def __str__(self) -> str:
        return f"{self.path} ({', '.join(self.kinds)})"


def read_rules(text: str) -> list[Rule]:
    return [
        Rule(
            compiled(each["pattern"]),
            each["write"],
            tuple(each.get("kinds", KINDS)),
            tuple(each["reject"]),
            tuple(each["accept"]),
        )
        for each in tomllib.loads(text)["rule"]
    ]


def compiled(pattern: str) -> re.Pattern[str]:
    """A space of a pattern also matches the end of a line, except in a look-behind, whose width is fixed."""
    pieces = re.split(r"(\(\?<[!=][^)]*\))", pattern)
    flexible = [each if each.startswith("(?<") else each.replace(" ", r"\s+") for each in pieces]
    return re.compile("".join(flexible), re.IGNORECASE)


def read_pending(text: str) -> list[Pending]:
    groups = tomllib.loads(text).get("pending", [])
    return [Pending(path, tuple(each["kinds"])) for each in groups for path in each["paths"]]


def find(path: str, text: Text, rules: Iterable[Rule]) -> Iterator[Finding]:
    """The phrases of the rules in one text."""
    for rule in rules:
        if text.kind in rule.kinds:
            for match in rule.pattern.finditer(text.text):
                line = text.line + text.text.count("\n", 0, match.start())
                phrase = " ".join(match[0].split())
                yield Finding(path, line, text.kind, phrase, rule.write)


def judge(findings: Iterable[Finding], pending: Iterable[Pending]) -> list[str]:
    """What is wrong: findings that no entry covers, and entries that cover none."""
    unused = list(pending)
    entries = list(unused)
    wrong = list[str]()
    for finding in findings:
        covering = [each for each in entries if each.covers(finding)]
        if not covering:
            wrong.append(str(finding))
        unused = [each for each in unused if each not in covering]
    return [*wrong, *(f"pending.toml: {each} is clean; remove the entry" for each in unused)]


def findings_of_tree(root: Path) -> list[Finding]:
    rules = read_rules((HERE / "rules.toml").read_text())
    return [each for path, text in texts_of_tree(root) for each in find(path, text, rules)]


def check(root: Path) -> list[str]:
    return judge(findings_of_tree(root), read_pending((HERE / "pending.toml").read_text()))
