"""The settings of TLS, and the addresses that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cluster.pki import Authority

from onewriter_broker.anchor.api import Addresses
from onewriter_broker.settings import Settings
from onewriter_broker.tls import certificate_of, over_plain, over_tls
from onewriter_core.errors import ConfigurationError


@dataclass(frozen=True)
class Pair:
    certificate: Path
    key: Path


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    Authority(tmp_path).server("broker", ["localhost"])
    return Pair(tmp_path / "broker.crt", tmp_path / "broker.key")


def test_settings_name_both_files_or_none(pair: Pair) -> None:
    assert certificate_of(Settings()) is None
    with pytest.raises(ConfigurationError, match="go together"):
        certificate_of(Settings(tls_cert_file=pair.certificate))
    with pytest.raises(ConfigurationError, match="tls_only needs"):
        certificate_of(Settings(tls_only=True))
    found = certificate_of(Settings(tls_cert_file=pair.certificate, tls_key_file=pair.key))
    assert found is not None
    with pytest.raises(ConfigurationError, match=r"broker\.crt cannot be used"):
        certificate_of(Settings(tls_cert_file=pair.certificate, tls_key_file=pair.certificate))


def test_another_brokers_addresses_over_tls_follow_from_its_plain_ones(pair: Pair) -> None:
    settings = Settings(port=6650, http_port=8080, tls_port=6651, https_port=8443)
    other = Addresses("pulsar://broker-1.pods:6650", "http://broker-1.pods:8080")
    assert over_tls(other, settings) == Addresses(), "no TLS is served"
    settings = settings.model_copy(update={"tls_cert_file": pair.certificate})
    assert over_tls(other, settings) == Addresses(
        "pulsar+ssl://broker-1.pods:6651", "https://broker-1.pods:8443"
    )
    assert over_tls(Addresses(), settings) == Addresses()
    counted = Addresses("pulsar://[::1]:6652", "http://[::1]:8082")
    assert over_tls(counted, settings).broker_url == "pulsar+ssl://[::1]:6653"


def test_with_tls_alone_no_plain_address_is_named_and_none_listened_at(pair: Pair) -> None:
    addresses = Addresses("pulsar://broker-1.pods:6650", "http://broker-1.pods:8080")
    settings = Settings(host="0.0.0.0", tls_cert_file=pair.certificate, tls_key_file=pair.key)
    assert over_plain(addresses, settings) == addresses
    assert settings.plain_host == "0.0.0.0"
    settings = settings.model_copy(update={"tls_only": True})
    assert over_plain(addresses, settings) == Addresses()
    assert settings.plain_host == "127.0.0.1"
