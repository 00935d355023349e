"""Certificates and kubeconfigs of a cluster for tests: one authority, one certificate per part."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFE = dt.timedelta(days=7)
EXPIRED = dt.timedelta(minutes=-1)
SERVICE_ADDRESS = "10.96.0.1"
"""The address of the API server's own Service."""

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass
class Authority:
    """A certificate authority in a directory; each certificate is NAME.crt and NAME.key there."""

    directory: Path
    _key: ec.EllipticCurvePrivateKey = field(init=False)
    _name: x509.Name = field(init=False)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("onewriter-test-ca")
        builder = self._builder(self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        builder = builder.add_extension(_usage_of_authority(), critical=True)
        self._write("ca", builder.sign(self._key, hashes.SHA256()), self._key)

    @property
    def certificate(self) -> Path:
        return self.directory / "ca.crt"

    def server(
        self, name: str, hosts: list[str], *, is_expired: bool = False, is_client: bool = False
    ) -> None:
        """Issue a server's certificate for these host names and addresses. ``is_client``: it is a client to others, too."""
        names: list[x509.GeneralName] = []
        for host in hosts:
            try:
                names.append(x509.IPAddress(ipaddress.ip_address(host)))
            except ValueError:
                names.append(x509.DNSName(host))
        life = EXPIRED if is_expired else LIFE
        usages = [ExtendedKeyUsageOID.SERVER_AUTH]
        if is_client:
            usages.append(ExtendedKeyUsageOID.CLIENT_AUTH)
        self._issue(name, _name(name), names, usages, life)

    def client(self, name: str, user: str, group: str = "") -> None:
        """Issue a client's certificate. Kubernetes reads the user from CN and its group from O."""
        self._issue(name, _name(user, group), [], [ExtendedKeyUsageOID.CLIENT_AUTH])

    def service_account_keys(self) -> None:
        """Make the pair that signs and verifies ServiceAccount tokens: sa.key and sa.pub."""
        key = rsa.generate_private_key(65537, 2048)
        (self.directory / "sa.key").write_bytes(_private(key))
        (self.directory / "sa.pub").write_bytes(
            key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )

    def kubeconfig(self, name: str, server: str) -> Path:
        """Write a kubeconfig for the client certificate of that name."""
        path = self.directory / f"{name}.kubeconfig"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "clusters": [
                {
                    "name": "lab",
                    "cluster": {"server": server, "certificate-authority": str(self.certificate)},
                }
            ],
            "users": [
                {
                    "name": name,
                    "user": {
                        "client-certificate": str(self.directory / f"{name}.crt"),
                        "client-key": str(self.directory / f"{name}.key"),
                    },
                }
            ],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": name}}],
        }
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        return path

    def _issue(
        self,
        name: str,
        subject: x509.Name,
        hosts: list[x509.GeneralName],
        usages: list[x509.ObjectIdentifier],
        life: dt.timedelta = LIFE,
    ) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(subject, key, life).add_extension(
            x509.ExtendedKeyUsage(usages), critical=False
        )
        # Python 3.13 and later refuse a certificate without it.
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(issuer, critical=False)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        self._write(name, builder.sign(self._key, hashes.SHA256()), key)

    def _builder(
        self, subject: x509.Name, key: Key, life: dt.timedelta = LIFE
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(minutes=5))
            .not_valid_after(now + life)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
        )

    def _write(self, name: str, certificate: x509.Certificate, key: Key) -> None:
        path = self.directory / f"{name}.crt"
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (self.directory / f"{name}.key").write_bytes(_private(key))


def _usage_of_authority() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str, group: str = "") -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if group:
        attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    return x509.Name(attributes)


def _private(key: Key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
