"""The checker of the prose: its rules, what it reads as prose, and the list of texts still to be rewritten."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.prose import checker, texts
from tests.prose.checker import Finding, Pending, Rule
from tests.prose.texts import KINDS, Text

ROOT = Path(__file__).resolve().parent.parent
RULES = checker.read_rules((checker.HERE / "rules.toml").read_text())
RETRY = Rule(checker.compiled(r"\bcome again\b"), "retry")


def phrases(rule: Rule, text: str) -> list[str]:
    return [each.phrase for each in checker.find("x.md", Text(1, rule.kinds[0], text), [rule])]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.write[:30])
def test_rule_rejects_and_accepts_its_examples(rule: Rule) -> None:
    assert rule.reject
    assert rule.accept
    assert [text for text in rule.reject if not phrases(rule, text)] == []
    assert {text: found for text in rule.accept if (found := phrases(rule, text))} == {}
    assert set(rule.kinds) <= set(KINDS)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.write[:30])
def test_the_wording_that_a_rule_proposes_passes_the_other_rules(rule: Rule) -> None:
    others = [each for each in RULES if each is not rule]
    assert list(checker.find("x.md", Text(1, "docs", rule.write), others)) == []


def test_pending_entries_name_existing_paths_and_known_kinds_once() -> None:
    entries = checker.read_pending((checker.HERE / "pending.toml").read_text())
    assert [each for each in entries if not (ROOT / each.path).exists()] == []
    assert [each for each in entries if not set(each.kinds) <= set(KINDS)] == []
    pairs = [(each.path, kind) for each in entries for kind in each.kinds]
    assert len(pairs) == len(set(pairs))


def test_finding_names_file_line_phrase_and_replacement() -> None:
    found = list(checker.find("a.md", Text(3, "docs", "Full.\n\nPlease come\nagain."), [RETRY]))
    assert [str(each) for each in found] == ['a.md:5: docs: "come again"; write: retry']


def test_rule_applies_to_its_kinds_only() -> None:
    rule = Rule(RETRY.pattern, "retry", kinds=("messages",))
    assert not list(checker.find("a.py", Text(1, "comments", "come again"), [rule]))
    assert list(checker.find("a.py", Text(1, "messages", "come again"), [rule]))


def test_page_is_read_without_its_code() -> None:
    page = "One `come again`.\n```\ncome again\n```\nLast come again.\n"
    (text,) = texts.page_texts(page)
    found = list(checker.find("a.md", text, [RETRY]))
    assert [each.line for each in found] == [5]


def test_consecutive_comments_are_one_text() -> None:
    source = "x = 1  # beside\n\n# first\n#\n# third\ny = 2\n"
    found = [(each.line, each.text) for each in texts.comments(source)]
    assert found == [(1, "beside"), (3, "first\n\nthird")]


def test_strings_of_a_module_are_messages_docstrings_or_names() -> None:
    source = '''"""A module."""
LIMIT = 3
"""A constant."""
NAME = "two words"


def run(x):
    """Code ``come again`` here."""
    raise ValueError(f"{x} is not a number" " of anything")


@click.command("go")
@click.option("--all", help="Every one of them.")
def go():
    """Go somewhere."""
'''
    found = [(each.kind, each.text) for each in texts.module_texts(source)]
    assert sorted(found) == [
        ("docstrings", "A constant."),
        ("docstrings", "A module."),
        ("docstrings", "Code CODE here."),
        ("messages", "Every one of them."),
        ("messages", "Go somewhere."),
        ("messages", "X is not a number of anything"),
    ]


def test_descriptions_are_read_at_every_depth() -> None:
    manifest = "a:\n  description: Top.\n  properties:\n  - b: {description: 'Inner one.'}\n"
    found = [(each.line, each.text) for each in texts.descriptions(manifest)]
    assert sorted(found) == [(2, "Top."), (4, "Inner one.")]


@pytest.mark.parametrize("path", ["core/a.py", "core"])
def test_pending_entry_covers_a_file_or_the_files_of_a_folder(path: str) -> None:
    found = Finding("core/a.py", 1, "comments", "anew", "again")
    assert checker.judge([found], [Pending(path, ("comments",))]) == []


@pytest.mark.parametrize("path", ["broker", "cor", "core/b.py"])
def test_pending_entry_does_not_cover_other_files(path: str) -> None:
    found = Finding("core/a.py", 1, "comments", "anew", "again")
    assert len(checker.judge([found], [Pending(path, ("comments",))])) == 2


def test_pending_entry_does_not_cover_subfolders_or_other_kinds() -> None:
    inner = Finding("core/topic/a.py", 1, "comments", "anew", "again")
    other = Finding("core/a.py", 1, "messages", "anew", "again")
    wrong = checker.judge([inner, other], [Pending("core", ("comments",))])
    assert wrong == [str(inner), str(other), _remove("core (comments)")]


def test_pending_entry_without_findings_has_to_be_removed() -> None:
    assert checker.judge([], [Pending("core", ("comments",))]) == [_remove("core (comments)")]


def _remove(entry: str) -> str:
    return f"pending.toml: {entry} is clean; remove the entry"
