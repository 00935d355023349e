"""The certificate in use: when it counts as late, and the effect of half-written files."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
import structlog
from cryptography import x509
from tests.cluster.pki import Authority

from onewriter_http.certificate import (
    REMIND_SECONDS,
    ServerCertificate,
    UnusableCertificateError,
)


class Lab:
    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.authority.server("broker", ["localhost"])
        self.certificate, self.key = directory / "broker.crt", directory / "broker.key"
        found = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        self.begins, self.ends = (
            moment.timestamp() for moment in (found.not_valid_before_utc, found.not_valid_after_utc)
        )
        self.now = dt.datetime.now(dt.UTC).timestamp()

    def open(self) -> ServerCertificate:
        return ServerCertificate(self.certificate, self.key, unix_seconds=lambda: self.now)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_a_certificate_is_late_in_the_last_tenth_of_its_life(lab: Lab) -> None:
    certificate = lab.open()
    life = lab.ends - lab.begins
    with structlog.testing.capture_logs() as logs:
        lab.now = lab.ends - life * 0.11
        certificate.reload_if_changed()
        assert logs == []
        lab.now = lab.ends - life * 0.09
        certificate.reload_if_changed()
        certificate.reload_if_changed()
        assert [each["event"] for each in logs] == ["tls.expires"], "said once an hour"
        assert logs[0]["seconds_left"] == pytest.approx(life * 0.09, abs=1)
        lab.now += REMIND_SECONDS
        certificate.reload_if_changed()
        lab.now = lab.ends + 60
        certificate.reload_if_changed()
    assert [each["event"] for each in logs] == ["tls.expires", "tls.expires", "tls.expired"]
    assert certificate.not_after == lab.ends


def test_half_a_renewal_changes_nothing_and_is_reported_once(lab: Lab) -> None:
    certificate = lab.open()
    good = (lab.certificate.read_bytes(), lab.key.read_bytes())
    lab.authority.server("broker", ["localhost"])
    renewed = lab.key.read_bytes()
    lab.key.write_bytes(good[1])  # the new certificate, and still the old key
    with structlog.testing.capture_logs() as logs:
        certificate.reload_if_changed()
        certificate.reload_if_changed()
        assert [each["event"] for each in logs] == ["tls.unusable"]
        lab.key.write_bytes(renewed)
        certificate.reload_if_changed()
        assert [each["event"] for each in logs] == ["tls.unusable", "tls.renewed"]
        lab.certificate.unlink()
        certificate.reload_if_changed()
    assert logs[-1]["event"] == "tls.unusable"
    assert "No such file" in logs[-1]["reason"]


@pytest.mark.parametrize("content", [b"", b"hello", b"-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_an_invalid_certificate_file_is_named(lab: Lab, content: bytes) -> None:
    lab.certificate.write_bytes(content)
    with pytest.raises(UnusableCertificateError, match=r"broker\.crt"):
        lab.open()
