"""Which headers a page of another site gives itself away by, and which are fine."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from onewriter_http.browsers import Browsers, is_loopback

BROWSERS = Browsers({"127.0.0.1", "broker.example"}, checks_host=True)


def headers(*pairs: tuple[str, str]) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict(pairs))


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.0.0.1:8080", "localhost", "LOCALHOST:8080", "[::1]", "[::1]:8080",
        "127.1.2.3", "broker.example:8080",
    ],
)  # fmt: skip
def test_names_of_this_machine_are_served(host: str) -> None:
    assert BROWSERS.refusal(headers(("Host", host))) is None


@pytest.mark.parametrize(
    "host",
    [
        "", "evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example",
        "10.0.0.1", "[::1", "[", "localhost:99999999", "localhost:x", "a@localhost", "localhost/x",
        "127.0.0.1, evil.example", "\ud800", "xn--\u0130",
    ],
)  # fmt: skip
def test_other_and_malformed_names_are_refused(host: str) -> None:
    assert BROWSERS.refusal(headers(("Host", host))) is not None


def test_a_request_has_one_host() -> None:
    assert BROWSERS.refusal(headers()) is not None
    assert BROWSERS.refusal(headers(("Host", "localhost"), ("Host", "localhost"))) is not None


def test_elsewhere_any_host_will_do() -> None:
    elsewhere = Browsers(checks_host=False)
    assert elsewhere.refusal(headers(("Host", "any.example"))) is None
    assert BROWSERS.refusal(headers(("Host", "any.example")), checks_host=False) is None


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site"])
def test_pages_of_another_site_are_refused(site: str) -> None:
    assert BROWSERS.refusal(headers(("Host", "localhost"), ("Sec-Fetch-Site", site))) is not None


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_its_own_pages_and_typed_addresses_are_served(site: str) -> None:
    assert BROWSERS.refusal(headers(("Host", "localhost"), ("Sec-Fetch-Site", site))) is None


@pytest.mark.parametrize(
    ("origin", "is_served"),
    [
        ("http://localhost:8080", True),
        ("HTTP://LOCALHOST:8080", True),
        ("http://localhost", False),
        ("http://localhost:8081", False),
        ("http://evil.example:8080", False),
        ("null", False),
        ("", False),
        ("file://", False),
        ("http://[::1", False),
        ("http://localhost:8080/x", False),
        ("ftp://localhost:8080", False),
        ("\ud800", False),
    ],
)
def test_an_origin_is_the_host_that_was_asked(origin: str, *, is_served: bool) -> None:
    found = BROWSERS.refusal(headers(("Host", "localhost:8080"), ("Origin", origin)))
    assert (found is None) == is_served


def test_default_ports_need_not_be_named() -> None:
    assert (
        BROWSERS.refusal(headers(("Host", "localhost"), ("Origin", "http://localhost:80"))) is None
    )
    assert (
        BROWSERS.refusal(headers(("Host", "localhost:443"), ("Origin", "https://localhost")))
        is None
    )


def test_a_server_without_pages_refuses_every_origin() -> None:
    without = Browsers(checks_host=True, allows_same_origin=False)
    assert (
        without.refusal(headers(("Host", "localhost"), ("Origin", "http://localhost"))) is not None
    )


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("", False)],
)
def test_loopback_addresses(host: str, *, expected: bool) -> None:
    assert is_loopback(host) == expected
