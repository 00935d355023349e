"""Bugs in the store's scripts, planted into this process: the fake server then executes the wrong script."""

from __future__ import annotations

import hashlib

import pytest
from tests.mutants.mutant import Mutant
from tests.mutants.planting import ROOT, file_of, planted

from onewriter_broker.log.store.redis import primary, script_calls
from onewriter_broker.log.store.redis.script_calls import Script


def plant(monkeypatch: pytest.MonkeyPatch, mutant: Mutant) -> None:
    """Give every script that contains the mutant's file the mutant's version of it."""
    right = file_of(mutant, ROOT).read_bytes()
    wrong = planted(mutant, right.decode()).encode()
    changed: dict[Script, Script] = {}
    for name, script in vars(script_calls).items():
        if isinstance(script, Script) and right in script.source:
            source = script.source.replace(right, wrong)
            digest = hashlib.sha1(source, usedforsecurity=False).hexdigest()
            changed[script] = Script(source, digest)
            monkeypatch.setattr(script_calls, name, changed[script])
    assert changed, f"no script contains {mutant.target}"
    all_scripts = tuple(changed.get(script, script) for script in script_calls.ALL_SCRIPTS)
    monkeypatch.setattr(primary, "ALL_SCRIPTS", all_scripts)
