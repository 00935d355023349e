"""The page of commands: every verb with its options, from click."""

from __future__ import annotations

import importlib
import inspect
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
from docs.generator.tables import code, page, prose, table

ROOT: Final = Path(__file__).resolve().parents[2]

INTRODUCTION: Final = """
`VERB --help` prints the same in the terminal. [HTTP API](../http.md#commands-that-use-this-api),
[kubectl onewriter](../kubectl.md) and [the pipeline](../pipeline.md) list the exit codes.
"""


def text() -> str:
    """The whole page."""
    return page("Commands", INTRODUCTION, *(_verb(*each) for each in verbs().items()))


def verbs() -> dict[str, click.Command]:
    """All verbs of `onewriter`, and the other commands with theirs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    points = {
        f"onewriter {name}": point
        for name, point in project["entry-points"]["onewriter.commands"].items()
    }
    points |= {
        "kubectl onewriter": "onewriter_kubectl.cli:onewriter",
        "onewriter-pipeline": "onewriter_pipeline.cli:pipeline",
    }
    found = {name: _click_command(point) for name, point in points.items()}
    return {name: each for top, verb in found.items() for name, each in _with_its_own(top, verb)}


def options(command: click.Command) -> list[click.Option]:
    """The options that a user may set."""
    return [each for each in command.params if isinstance(each, click.Option) and not each.hidden]


def names() -> list[str]:
    """Each verb with its arguments and options."""
    return [
        " ".join([name, *_arguments(command), *(each.opts[-1] for each in options(command))])
        for name, command in verbs().items()
    ]


def _click_command(point: str) -> click.Command:
    module, _, name = point.partition(":")
    found = getattr(importlib.import_module(module), name)
    if not isinstance(found, click.Command):
        raise TypeError(f"{point} is not a click command")
    return found


def _with_its_own(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            verb = command.get_command(context, each)
            if verb is not None:
                yield from _with_its_own(f"{name} {each}", verb)


def _verb(name: str, command: click.Command) -> str:
    words = " ".join([name, "[OPTIONS]" if options(command) else "", *_arguments(command)])
    parts = [f"## {name}", f"`{' '.join(words.split())}`", _help(command)]
    rows = [
        (", ".join(map(code, _forms(each))), _default(each), prose(each.help or ""))
        for each in options(command)
    ]
    if rows:
        parts.append(table(("option", "default", "meaning"), rows))
    return "\n\n".join(parts)


def _help(command: click.Command) -> str:
    paragraphs = inspect.cleandoc(command.help or "").replace("\f", "").split("\n\n")
    return "\n\n".join(_paragraph(each) for each in paragraphs)


def _paragraph(text: str) -> str:
    if text.startswith("\b"):  # click keeps these lines as they are
        return "```text\n" + text.removeprefix("\b").strip("\n") + "\n```"
    return prose(text)


def _arguments(command: click.Command) -> list[str]:
    context = click.Context(command)
    found = (each for each in command.params if isinstance(each, click.Argument))
    return [each.make_metavar(context) for each in found]


def _forms(option: click.Option) -> list[str]:
    """The option's names, with what its value is."""
    if option.is_flag or option.count:
        return [*option.opts, *option.secondary_opts]
    value = option.make_metavar(click.Context(click.Command("none")))
    return [*option.opts[:-1], f"{option.opts[-1]} {value}"]


def _default(option: click.Option) -> str:
    default = option.to_info_dict()["default"]
    if option.required:
        return "(required)"
    if default is None or callable(default) or isinstance(default, bool) or "UNSET" in str(default):
        return ""
    if isinstance(default, (list, tuple)):
        return code(" ".join(map(str, default)))
    return code(default)
