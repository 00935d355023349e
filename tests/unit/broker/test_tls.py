"""The certificate in use: when it counts as late, and the effect of half-written files."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
import structlog
from cryptography import x509
from tests.cluster.pki import Authority

from onewriter_broker.anchor.api import Addresses
from onewriter_broker.settings import Settings
from onewriter_broker.tls import (
    REMIND_SECONDS,
    ServerCertificate,
    certificate_of,
    over_plain,
    over_tls,
)
from onewriter_core.errors import ConfigurationError


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
    with pytest.raises(ConfigurationError, match=r"broker\.crt"):
        lab.open()


def test_settings_name_both_files_or_none(lab: Lab) -> None:
    assert certificate_of(Settings()) is None
    with pytest.raises(ConfigurationError, match="go together"):
        certificate_of(Settings(tls_cert_file=lab.certificate))
    with pytest.raises(ConfigurationError, match="tls_only needs"):
        certificate_of(Settings(tls_only=True))
    found = certificate_of(Settings(tls_cert_file=lab.certificate, tls_key_file=lab.key))
    assert found is not None


def test_another_brokers_addresses_over_tls_follow_from_its_plain_ones(lab: Lab) -> None:
    settings = Settings(port=6650, http_port=8080, tls_port=6651, https_port=8443)
    other = Addresses("pulsar://broker-1.pods:6650", "http://broker-1.pods:8080")
    assert over_tls(other, settings) == Addresses(), "no TLS is served"
    settings = settings.model_copy(update={"tls_cert_file": lab.certificate})
    assert over_tls(other, settings) == Addresses(
        "pulsar+ssl://broker-1.pods:6651", "https://broker-1.pods:8443"
    )
    assert over_tls(Addresses(), settings) == Addresses()
    counted = Addresses("pulsar://[::1]:6652", "http://[::1]:8082")
    assert over_tls(counted, settings).broker_url == "pulsar+ssl://[::1]:6653"


def test_with_tls_alone_no_plain_address_is_named_and_none_listened_at(lab: Lab) -> None:
    addresses = Addresses("pulsar://broker-1.pods:6650", "http://broker-1.pods:8080")
    settings = Settings(host="0.0.0.0", tls_cert_file=lab.certificate, tls_key_file=lab.key)
    assert over_plain(addresses, settings) == addresses
    assert settings.plain_host == "0.0.0.0"
    settings = settings.model_copy(update={"tls_only": True})
    assert over_plain(addresses, settings) == Addresses()
    assert settings.plain_host == "127.0.0.1"
