"""``onewriter adopt``: the operator that the audit names."""

from __future__ import annotations

import getpass
import os

import pytest

from onewriter_broker.verbs import adopt


def test_a_user_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    assert adopt._user() == "ada"


@pytest.mark.parametrize("error", [KeyError, OSError])
def test_a_user_without_a_name_is_numbered(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fails() -> str:
        raise error("getpwuid(): uid not found: 65532")

    monkeypatch.setattr(getpass, "getuser", fails)
    assert adopt._user() == str(os.getuid())
