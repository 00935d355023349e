"""The Java for Spark: an installed one, the bundled one, or an error that says how to install one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onewriter_pipeline import java_runtime
from onewriter_pipeline.errors import EngineFailed

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the wrapper is a shell script")


def fake_java(folder: Path, says: str) -> Path:
    """A program ``java`` that prints a version as Java does."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{says}\"' >&2\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "21.0.8" 2025-07-15', 21),
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("command not found", None),
    ],
)
def test_major_version_is_parsed(text: str, version: int | None) -> None:
    assert java_runtime.major_version(text) == version


@pytest.mark.parametrize("says", ["17.0.1", "21"])
def test_installed_java_is_used(tmp_path: Path, says: str) -> None:
    fake_java(tmp_path, says)
    environment = {"PATH": str(tmp_path)}
    java_runtime.use_java(environment)
    assert environment == {"PATH": str(tmp_path)}


def test_java_home_has_priority_over_the_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "old", "11.0.2")
    fake_java(tmp_path / "home" / "bin", "21.0.1")
    home = str(tmp_path / "home")
    assert java_runtime.installed_version({"PATH": str(tmp_path / "old"), "JAVA_HOME": home}) == 21


@pytest.mark.parametrize("says", ["", "11.0.2"])
def test_bundled_java_replaces_a_missing_or_old_java(
    tmp_path: Path, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if says:
        fake_java(tmp_path, says)
    environment = {"PATH": str(tmp_path)}
    java_runtime.use_java(environment)
    home = Path(environment["JAVA_HOME"])
    assert home.is_relative_to(tmp_path / "cache")
    version = java_runtime.installed_version({**os.environ, **environment})
    assert version is not None
    assert version >= java_runtime.JAVA_VERSION_MIN


def test_wrapper_drops_one_argument_and_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    echo = tmp_path / "a folder with 'quotes'" / "java"
    echo.parent.mkdir()
    echo.write_text('#!/bin/sh\nfor argument do printf "[%s]" "$argument"; done\n')
    echo.chmod(0o755)
    wrapper = java_runtime.home_of(echo) / "bin" / "java"
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "--add-modules=java.se"]
    reported = subprocess.run([wrapper, *arguments], check=True, capture_output=True, text=True)
    assert reported.stdout == "[-cp][a b][][--add-modules=java.se]"


def test_each_java_has_its_own_wrapper_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first, second = tmp_path / "1" / "java", tmp_path / "2" / "java"
    home = java_runtime.home_of(first)
    written = (home / "bin" / "java").stat().st_ino
    assert java_runtime.home_of(first) == home
    assert (home / "bin" / "java").stat().st_ino == written
    assert java_runtime.home_of(second) != home


def test_unwritable_cache_is_replaced_by_a_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert (java_runtime.home_of(tmp_path / "java") / "bin" / "java").exists()


@pytest.mark.parametrize(
    ("says", "found"),
    [("", "no Java was found"), ("11.0.2", "the installed Java is version 11")],
)
def test_error_without_java_names_both_ways_to_install_one(
    tmp_path: Path, says: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java_runtime, "bundled_java", lambda: None)
    if says:
        fake_java(tmp_path, says)
    with pytest.raises(EngineFailed, match=found) as caught:
        java_runtime.use_java({"PATH": str(tmp_path)})
    assert "pip install '.[spark,java]'" in str(caught.value)
    assert "default-jre-headless" in str(caught.value)
