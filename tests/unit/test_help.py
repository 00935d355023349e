"""What the commands say of themselves: every option of every verb, in words that can be read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from docs.generator.commands import verbs

ROOT = Path(__file__).parents[2]


VERBS = verbs()


@pytest.mark.parametrize("name", VERBS)
def test_every_option_has_a_help_text(name: str) -> None:
    command = VERBS[name]
    options = [each for each in command.params if isinstance(each, click.Option)]
    assert [each.name for each in options if not each.help and not each.hidden] == []
    assert command.help


@pytest.mark.parametrize("name", VERBS)
def test_help_is_in_lines_and_without_marks_for_the_program(name: str) -> None:
    command = VERBS[name]
    text = command.get_help(click.Context(command, info_name=name))
    assert "\\b" not in text
    assert "\b" not in text
    assert all(len(line) <= 80 for line in text.splitlines())


PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("**/*.md"))]
PROGRAMS = ("onewriter-pipeline", "kubectl onewriter", "onewriter")
INVOKED = re.compile(
    rf"(?:[A-Z_]+=\S* )*(?:\S*/bin/)?({'|'.join(PROGRAMS)}) ([a-z][a-z-]*)((?: [^\n]*)?)$"
)


def command_lines(page: Path) -> Iterator[str]:
    """Each line of code, and each piece of code in a line, as one that a shell would be given."""
    fenced = False
    for line in re.sub(r"\\\n\s*", "", page.read_text()).splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif fenced:
            yield line.strip().removeprefix("$ ")
        else:
            yield from re.findall(r"`([^`]+)`", line)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_pages_exist(page: Path) -> None:
    wrong = []
    for line in command_lines(page):
        found = INVOKED.match(re.split(r" -- | [|;#>&]", line)[0].rstrip())
        if found is None:
            continue
        name, rest = f"{found[1]} {found[2]}", found[3].split()
        if name not in VERBS:
            wrong.append(f"{name}: there is no such verb")
            continue
        verb = VERBS[f"{name} {rest[0]}" if rest and f"{name} {rest[0]}" in VERBS else name]
        known = {
            each for option in (*verb.params, *VERBS[name].params) for each in names_of(option)
        }
        given = {word.partition("=")[0] for word in rest if word.startswith("--")}
        wrong += [f"{name}: {option} is no option" for option in sorted(given - known)]
    assert wrong == []


def names_of(option: click.Parameter) -> list[str]:
    return [*option.opts, *option.secondary_opts, "--help", "--version"]
