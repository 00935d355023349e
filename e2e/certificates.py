"""Certificates for tests of their expiry."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa


def expired(certificate: bytes, authority: bytes, authority_key: bytes) -> bytes:
    """The same certificate for the same key, except that it expired an hour ago. All are in PEM."""
    former = x509.load_pem_x509_certificate(certificate)
    issuer = x509.load_pem_x509_certificate(authority)
    key = serialization.load_pem_private_key(authority_key, None)
    if not isinstance(key, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
        raise TypeError(f"the authority's key is a {type(key).__name__}")
    ended = datetime.now(UTC) - timedelta(hours=1)
    builder = (
        x509.CertificateBuilder()
        .subject_name(former.subject)
        .issuer_name(issuer.subject)
        .public_key(former.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(ended - timedelta(days=1))
        .not_valid_after(ended)
    )
    for each in former.extensions:
        builder = builder.add_extension(each.value, each.critical)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
