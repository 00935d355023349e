"""The one command: verbs from entry points, imported late; errors in one line, with their code."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Self

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from onewriter_core import command
from onewriter_core.errors import (
    ConfigurationError,
    Fenced,
    OnewriterError,
    ProtocolError,
    Refused,
    ServerError,
    Unavailable,
    Undecided,
)

GREET = """
import click

@click.command()
@click.argument("name", default="you")
def greet(name):
    \"\"\"Say hello.\"\"\"
    click.echo(f"hello {name}")
"""
RAISES = """
import click

@click.command()
def run():
    from test_command_errors import error
    raise error
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of importable modules that are forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def verbs(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The installed verbs, name to ``module:command``."""
    installed: dict[str, str] = {}

    def entry_points(*, group: str) -> metadata.EntryPoints:
        assert group == "onewriter.commands"
        return metadata.EntryPoints(
            metadata.EntryPoint(name, value, group) for name, value in installed.items()
        )

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    return installed


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)
    code = caught.value.code
    assert code is None or isinstance(code, int)
    return code or 0


def test_a_verb_is_imported_when_it_is_used_and_its_siblings_are_not(
    modules: Path, verbs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    (modules / "part_greeting.py").write_text(GREET, encoding="utf-8")
    (modules / "part_other.py").write_text("raise SystemError('imported')", encoding="utf-8")
    verbs.update(greet="part_greeting:greet", other="part_other:run")
    assert run("greet", "Ada") == 0
    assert capsys.readouterr().out == "hello Ada\n"
    assert "part_other" not in sys.modules


def test_help_lists_every_verb_with_what_it_does_or_lacks(
    modules: Path, verbs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    (modules / "part_greeting.py").write_text(GREET, encoding="utf-8")
    broker = modules / "onewriter_broker"
    broker.mkdir()
    (broker / "__init__.py").touch()
    (broker / "cli.py").write_text("import missing_library", encoding="utf-8")
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if "onewriter_broker" in name}
    try:
        verbs.update(greet="part_greeting:greet", up="onewriter_broker.cli:up")
        assert run("--help") == 0
        text = " ".join(capsys.readouterr().out.split())
        assert "greet Say hello." in text
        assert "up (up needs more than is installed (no module missing_library)" in text
        assert "Exit codes: 0 done" in text
        assert run("up", "--port", "1") == command.EXIT_USAGE
        assert capsys.readouterr().err == (
            "onewriter: up needs more than is installed (no module missing_library): "
            "run pip install '.[broker]' in a checkout of onewriter\n"
        )
    finally:
        for name in [name for name in sys.modules if "onewriter_broker" in name]:
            del sys.modules[name]
        sys.modules.update(kept)


@pytest.mark.parametrize(
    ("content", "value", "message"),
    [
        (None, "part_gone:run", "there is no module part_gone"),
        ("import not_there_at_all", "part_x:run", "there is no module not_there_at_all"),
        ("from os import no_such_name", "part_x:run", "cannot import name 'no_such_name'"),
        ("run = 5", "part_x:run", "part_x:run is not a command"),
        ("", "part_x:run", "part_x:run is not a command"),
    ],
)
def test_a_broken_verb_is_one_clear_line(
    modules: Path,
    verbs: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    content: str | None,
    value: str,
    message: str,
) -> None:
    if content is not None:
        (modules / "part_x.py").write_text(content, encoding="utf-8")
    verbs["broken"] = value
    assert run("broken") == command.EXIT_USAGE
    error = capsys.readouterr().err
    assert error.startswith("onewriter: broken cannot start: ")
    assert message in error
    assert error.count("\n") == 1


def test_an_unknown_verb_is_answered_with_the_likeliest(
    verbs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    verbs.update(status="a:b", topics="a:b")
    assert run("statsu") == command.EXIT_USAGE
    error = capsys.readouterr().err
    assert "there is no command 'statsu'. Did you mean status?" in error
    assert run("zzz") == command.EXIT_USAGE
    assert "Did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "lines"),
    [
        (ConfigurationError("a.yaml: wrong\nb.yaml: wrong"), 2, ["a.yaml: wrong", "b.yaml: wrong"]),
        (Refused(ServerError.TOPIC_NOT_FOUND, "no topic x"), 1, ["no topic x"]),
        (Fenced("the epoch has moved on"), 1, ["the epoch has moved on"]),
        (Unavailable("nobody answers"), 3, ["nobody answers"]),
        (Undecided("cut off"), 3, ["cut off"]),
        (ProtocolError("no frame"), 3, ["no frame"]),
        (OnewriterError(), 3, ["OnewriterError"]),
    ],
)
def test_an_error_of_ours_is_its_text_and_its_exit_code(
    modules: Path,
    verbs: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: OnewriterError,
    code: int,
    lines: list[str],
) -> None:
    (modules / "part_raises.py").write_text(RAISES, encoding="utf-8")
    (modules / "test_command_errors.py").write_text("error = None", encoding="utf-8")
    monkeypatch.setattr(importlib.import_module("test_command_errors"), "error", error)
    verbs["run"] = "part_raises:run"
    assert run("run") == code
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [f"onewriter: {line}" for line in lines]
    assert captured.out == ""


def test_a_defect_is_not_dressed_up_as_a_message(modules: Path, verbs: dict[str, str]) -> None:
    (modules / "part_raises.py").write_text(RAISES, encoding="utf-8")
    (modules / "test_command_errors.py").write_text("error = KeyError('defect')", encoding="utf-8")
    verbs["run"] = "part_raises:run"
    with pytest.raises(KeyError, match="defect"):
        command.main(["run"])


def test_without_any_verb_the_command_still_explains_itself(
    verbs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert verbs == {}
    assert run("--help") == 0
    assert "Commands:" not in capsys.readouterr().out


def test_the_version_is_the_installed_one(
    verbs: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(metadata, "version", {"onewriter": "1.2.3"}.__getitem__)
    assert run("--version") == 0
    assert capsys.readouterr().out == "onewriter 1.2.3\n"

    def not_installed(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", not_installed)
    assert run("--version") == 0
    assert "not installed" in capsys.readouterr().out


class _Settings(BaseModel):
    """Settings with the errors of constraints, of a validator, and of the whole."""

    port: int = Field(1, le=65535)
    password: str = ""

    @field_validator("password")
    @classmethod
    def _is_long(cls, password: str) -> str:
        if len(password) < 8:
            raise ValueError("use 8 characters or more")
        return password

    @model_validator(mode="after")
    def _fits(self) -> Self:
        raise ValueError("nothing fits")


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        (
            {"port": 70000, "password": "secret"},
            [
                "OW_PORT: Input should be less than or equal to 65535",
                "OW_PASSWORD: use 8 characters or more",
            ],
        ),
        ({}, ["nothing fits"]),
    ],
)
def test_invalid_settings_are_named_by_their_variables_without_values(
    given: dict[str, object], lines: list[str]
) -> None:
    with pytest.raises(ValidationError) as caught:
        _Settings.model_validate(given)
    assert str(command.invalid_settings(caught.value, "OW_")).splitlines() == lines
