"""The plugin's transcripts in the docs are its output for statuses that the operator writes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests import transcripts
from tests.unit.kube import documented_objects
from tests.unit.kubectl.fake_kubectl import FakeKubectl, service

from onewriter_kubectl import cli

PREFIX = "kubectl onewriter "


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKubectl:
    found = FakeKubectl(tmp_path)
    monkeypatch.setenv("ONEWRITER_KUBECTL", str(found.program))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(cli, "_now", lambda: documented_objects.NOW)
    found.has("get events")
    found.has("get services", service("onewriter"))
    renewed = {"holderIdentity": "onewriter-operator-0", "renewTime": "2026-01-01T00:03:19.0Z"}
    found.shows("get leases", {"spec": renewed})
    found.has("get poddisruptionbudgets", documented_objects.budget())
    found.shows("get pods writer-0", documented_objects.former_pod())
    claims = [documented_objects.claim(name) for name in ("primary", "standby")]
    found.has("get producerclaims", *claims)
    found.shows("get onewriters", documented_objects.one_writer())
    found.shows("get exclusivetopics.onewriter.dev orders", documented_objects.topic())
    found.has("get exclusivetopics.onewriter.dev --output", documented_objects.topic())
    return found


def output_of(command: str) -> str:
    words = shlex.split(command.removeprefix(PREFIX))
    result = CliRunner().invoke(cli.onewriter, words, catch_exceptions=False)
    return result.output


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(("page", "commands"), [("kubectl.md", 3), ("operator.md", 1)])
def test_transcripts_of_the_plugin_are_its_output(page: str, commands: int) -> None:
    assert transcripts.checked(page, PREFIX, output_of) == commands
