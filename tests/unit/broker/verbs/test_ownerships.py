"""``onewriter ownerships`` if some brokers do not answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from onewriter_broker.verbs import options
from onewriter_broker.verbs import ownerships as verb
from onewriter_core.command import EXIT_UNKNOWN
from onewriter_core.errors import (
    ConfigurationError,
    OnewriterError,
    Refused,
    ServerError,
    Unavailable,
)

REFUSED = Refused(ServerError.NOT_ALLOWED_ERROR, "bob is not among the administrators")


class Brokers:
    """Two brokers, of which the second one does not answer; ``unowned``: buckets of nobody.

    ``refusals``: what brokers answer that refuse, by their address.
    """

    def __init__(
        self, unowned: list[int], refusals: Mapping[str, OnewriterError] | None = None
    ) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.refusals = refusals or {}
        self._unowned = unowned

    def __call__(self, url: str, token: str, *, ca_file: Path | None) -> _Broker:
        del token, ca_file
        return _Broker(self, url)

    def brokers(self) -> dict[str, Any]:
        rows = [{"httpUrl": url, "alive": True} for url in ("http://one", "http://two")]
        return {
            "brokers": [*rows, {"httpUrl": "http://dead", "alive": False}],
            "unowned": self._unowned,
        }


class _Broker:
    def __init__(self, brokers: Brokers, url: str) -> None:
        self._brokers = brokers
        self._url = url

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        if path.endswith("/brokers"):
            return self._brokers.brokers()
        return self._answer(query, {"ownerships": [], "next": None})

    def delete(self, _path: str, **query: Any) -> dict[str, Any]:
        return self._answer(query, {"dropped": 2, "kept": 1})

    def _answer(self, query: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        self._brokers.requests.append((self._url, query))
        if self._url in self._brokers.refusals:
            raise self._brokers.refusals[self._url]
        if self._url == "http://two" and not self._brokers.brokers()["unowned"]:
            raise Unavailable("no broker answers at http://two")
        return answer


@pytest.mark.parametrize(
    ("unowned", "reason"),
    [([], "no broker answers at http://two"), ([3, 4], "2 buckets have no broker")],
)
@pytest.mark.parametrize("words", [(), ("--drop", "--group", "g")])
def test_unreachable_brokers_are_named_and_the_command_fails(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], unowned: list[int], reason: str
) -> None:
    monkeypatch.setattr(options, "Broker", Brokers(unowned))
    done = CliRunner().invoke(verb.ownerships, list(words))
    assert done.exit_code == EXIT_UNKNOWN
    assert reason in done.stderr
    assert done.stdout


@pytest.mark.parametrize("error", [REFUSED, ConfigurationError("no such group")], ids=str)
def test_drops_are_reported_if_the_second_broker_refuses(
    monkeypatch: pytest.MonkeyPatch, error: OnewriterError
) -> None:
    monkeypatch.setattr(options, "Broker", Brokers([1], {"http://two": error}))
    done = CliRunner().invoke(verb.ownerships, ["--drop", "--group", "g"])
    assert done.exit_code == EXIT_UNKNOWN
    assert f"http://two: {error}" in done.stderr
    assert done.stdout.startswith("2 dropped")


def test_where_the_first_broker_refuses_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers([1], {"http://one": REFUSED})
    monkeypatch.setattr(options, "Broker", brokers)
    done = CliRunner().invoke(verb.ownerships, ["--drop", "--group", "g"])
    assert done.exception is REFUSED, "the command ends with it"
    assert [url for url, _ in brokers.requests] == ["http://one"]


def test_every_live_broker_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers([1])
    monkeypatch.setattr(options, "Broker", brokers)
    words = ["--drop", "--group", "", "--resource", "r", "-o", "json"]
    done = CliRunner().invoke(verb.ownerships, words)
    assert [url for url, _ in brokers.requests] == ["http://one", "http://two"]
    assert brokers.requests[0][1] == {"group": "", "resource": "r"}
    output = json.loads(done.stdout)
    assert (output["dropped"], output["kept"]) == (4, 2)
