"""A store's password is refused on the command line."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from onewriter_broker.cli import up
from onewriter_broker.verbs.adopt import adopt
from onewriter_broker.verify.cli import verify_command


@pytest.mark.parametrize("command", [up, adopt, verify_command])
@pytest.mark.parametrize(
    "url", ["redis://:hunter2@redis:6379/0", "redis://me:hunter2@[::1]", "redis://["]
)
def test_a_url_with_a_password_is_refused_and_not_repeated(command: object, url: str) -> None:
    found = CliRunner().invoke(command, ["--redis-url", url])  # type: ignore[arg-type]
    assert found.exit_code == 2
    assert "hunter2" not in found.output
    assert "--redis-url" in found.output
