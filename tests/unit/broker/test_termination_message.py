"""The message that Kubernetes shows when a broker's process has ended."""

from __future__ import annotations

from pathlib import Path

from onewriter_broker.termination_message import (
    FILE,
    MESSAGE_BYTES_MAX,
    VARIABLE,
    termination_file,
    write_termination_message,
)


def test_the_default_is_the_default_of_kubernetes() -> None:
    assert termination_file({}) == FILE == Path("/dev/termination-log")
    assert termination_file({VARIABLE: "/x"}) == Path("/x")


def test_a_later_reason_replaces_the_former_one_and_a_broker_that_serves_removes_it(
    tmp_path: Path,
) -> None:
    file = tmp_path / "log"
    file.touch()
    write_termination_message(file, "the store does not answer")
    write_termination_message(file, "port\n  in use")
    assert file.read_text() == "port in use"
    write_termination_message(file, "")
    assert file.read_text() == ""


def test_the_supervisor_keeps_the_reason_that_the_broker_wrote(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("the store does not answer")
    write_termination_message(file, "broker-0 ended with code 2", replaces=False)
    assert file.read_text() == "the store does not answer"
    file.write_text("")
    write_termination_message(file, "broker-0 ended with code -9", replaces=False)
    assert file.read_text() == "broker-0 ended with code -9"


def test_the_message_is_bounded_and_stays_readable(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.touch()
    write_termination_message(file, "x" + "é" * MESSAGE_BYTES_MAX)
    assert MESSAGE_BYTES_MAX - 1 <= len(file.read_bytes()) <= MESSAGE_BYTES_MAX
    assert file.read_text(encoding="utf-8").strip("é") == "x"
    write_termination_message(file, "a\x1b[31mred")
    assert file.read_text() == "a\\u001b[31mred"


def test_without_the_file_nothing_is_created(tmp_path: Path) -> None:
    write_termination_message(tmp_path / "log", "the store does not answer")
    write_termination_message(tmp_path / "log", "ended", replaces=False)
    write_termination_message(tmp_path, "a directory is not writable")
    assert not list(tmp_path.iterdir())
