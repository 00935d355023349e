"""``onewriter map``: a shared map from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from onewriter_testing.processes import LocalBrokers

SECONDS_MAX = 60.0
PROGRAM = str(Path(sys.executable).with_name("onewriter"))


def run(broker: LocalBrokers, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, "map", *words],
        env={**os.environ, "ONEWRITER_SERVICE_URL": broker.service_url},
        capture_output=True,
        timeout=SECONDS_MAX,
        check=False,
        text=True,
    )


def said(broker: LocalBrokers, *words: str) -> str:
    done = run(broker, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_putting_getting_listing_deleting(broker: LocalBrokers, topic: str) -> None:
    assert said(broker, "put", topic, "colour", "red") == ""
    assert said(broker, "put", topic, "colour", "blue") == "red\n"
    assert said(broker, "get", topic, "colour") == "blue\n"
    said(broker, "put", topic, "size", "3")
    assert said(broker, "list", topic) == "colour\tblue\nsize\t3\n"
    assert said(broker, "delete", topic, "colour") == "blue\n"
    for verb in ("get", "delete"):
        missing = run(broker, verb, topic, "colour")
        assert (missing.returncode, missing.stdout) == (4, "")


def test_answers_as_json(broker: LocalBrokers, topic: str) -> None:
    words = ("--values", "json", "-o", "json")
    written = json.loads(said(broker, "put", topic, "k", '{"a": [1, null]}', *words))
    assert written == {"key": "k", "set": True, "previous": None, "version": 1}
    assert json.loads(said(broker, "get", topic, "k", *words)) == {
        "key": "k",
        "value": {"a": [1, None]},
        "found": True,
    }
    change = json.loads(said(broker, "watch", topic, "--initial", "--count", "1", *words))
    assert change == {"key": "k", "value": {"a": [1, None]}, "previous": None, "version": 1}


def test_conditions(broker: LocalBrokers, topic: str) -> None:
    said(broker, "put", topic, "k", "1", "--if-absent", "--values", "int")
    assert run(broker, "put", topic, "k", "2", "--if-absent", "--values", "int").returncode == 4
    assert run(broker, "put", topic, "k", "3", "--expect", "2", "--values", "int").returncode == 4
    said(broker, "put", topic, "k", "3", "--expect", "1", "--values", "int")
    assert said(broker, "get", topic, "k", "--values", "int") == "3\n"


def test_errors_name_what_is_wrong(broker: LocalBrokers, topic: str) -> None:
    wrong = run(broker, "put", topic, "k", "text", "--values", "int")
    assert wrong.returncode == 2
    assert "is not a valid int" in wrong.stderr
    said(broker, "put", topic, "k", "v")
    other = run(broker, "get", topic, "k", "--format", "sample")
    assert other.returncode != 0
    assert "cannot be read" in other.stderr
