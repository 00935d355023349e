"""TLS to the store: which authorities the broker trusts, and the certificate that it presents.

The files are read for each connection, so renewed ones apply from the next connection on.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from onewriter_core.errors import ConfigurationError, Undecided

CA_BYTES_MAX: Final = 1024 * 1024
"""Largest size of the file with the authorities."""

_UNKNOWN_AUTHORITY: Final = frozenset({2, 18, 19, 20, 21})
"""OpenSSL's verify codes for a chain that ends at no trusted authority."""
_NOT_YET_VALID, _EXPIRED = 9, 10
_OTHER_NAME: Final = frozenset({62, 64})
_NAME_ONE: Final = "name one with redis_cert_file and redis_key_file"


@dataclass(frozen=True, slots=True)
class StoreTls:
    """How to connect to a store with TLS.

    ``ca_file``: authorities in PEM; None: the system's. ``cert_file`` and ``key_file``: this client's
    certificate; None: it presents none. ``server_name``: the name that the store's certificate must have;
    empty: the host of the URL.
    """

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    server_name: str = ""

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise ConfigurationError("redis_cert_file and redis_key_file go together")

    @property
    def is_empty(self) -> bool:
        """Whether nothing is configured."""
        return self == StoreTls()

    async def options(self, host: str) -> dict[str, Any]:
        """The arguments of ``create_connection``. Raises Undecided, naming a file that cannot be used: it may
        be complete in a moment.
        """
        return {
            "ssl": await asyncio.to_thread(self._context),
            "server_hostname": self.name_for(host),
        }

    def name_for(self, host: str) -> str:
        """The name that the store's certificate must have."""
        return self.server_name or host

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks certificate and host name
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.ca_file is None:
            context.load_default_certs()
        else:
            self._load_authorities(context, self.ca_file)
        if self.cert_file is not None:
            try:
                context.load_cert_chain(self.cert_file, self.key_file, password=_no_password)
            except (OSError, ValueError) as error:
                raise Undecided(
                    f"redis_cert_file {self.cert_file} and redis_key_file {self.key_file} cannot be"
                    f" used: {error}"
                ) from error
        return context

    @staticmethod
    def _load_authorities(context: ssl.SSLContext, file: Path) -> None:
        try:
            with file.open("rb") as stream:
                content = stream.read(CA_BYTES_MAX)
            context.load_verify_locations(cadata=content.decode("ascii", "ignore"))
        except ssl.SSLError as error:
            raise Undecided(f"redis_ca_file {file}: no certificates in PEM: {error}") from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise Undecided(f"redis_ca_file {file} cannot be read: {reason}") from error
        except ValueError as error:
            raise Undecided(f"redis_ca_file {file}: no certificates in PEM: {error}") from error

    def explain(self, error: BaseException, host: str) -> str:
        """What failed, and which setting to change."""
        if isinstance(error, TimeoutError):
            return "it did not answer in time (a port that does not serve TLS looks like this)"
        cause = error if isinstance(error, ssl.SSLError) else error.__cause__
        if isinstance(cause, ssl.SSLCertVerificationError):
            return self._distrust(cause, host)
        reason = (cause.reason or "") if isinstance(cause, ssl.SSLError) else ""
        if reason in {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"}:
            return f"the port does not serve TLS: {cause}"
        if not isinstance(cause, ssl.SSLError) and not isinstance(error, ConnectionError):
            return repr(error)
        # Whether the store's reason arrives before the end of the connection is a matter of chance.
        if self.cert_file is not None:
            return f"{error} (perhaps the store refused the certificate in redis_cert_file {self.cert_file})"
        if "CERTIFICATE_REQUIRED" in reason:
            return f"{error} (the store requires a client certificate: {_NAME_ONE})"
        return f"{error} (perhaps the store requires a client certificate: {_NAME_ONE})"

    def _distrust(self, error: ssl.SSLCertVerificationError, host: str) -> str:
        """Why the store's certificate was refused."""
        code, message = error.verify_code, error.verify_message
        if code in _UNKNOWN_AUTHORITY:
            trusted = (
                f"redis_ca_file {self.ca_file}" if self.ca_file else "the system's authorities"
            )
            hint = "" if self.ca_file else ": set redis_ca_file to the file with its authority"
            return f"no authority in {trusted} signed the store's certificate ({message}){hint}"
        if code == _EXPIRED:
            return "the store's certificate, or that of its authority, has expired: renew it"
        if code == _NOT_YET_VALID:
            return "the store's certificate is not valid yet: compare the clocks"
        if code in _OTHER_NAME:
            return (
                f"the store's certificate is not for {self.name_for(host)!r}: set redis_server_name to a"
                f" name that it has ({message})"
            )
        return f"the store's certificate is refused: {message}"


def _no_password() -> str:
    raise ValueError("the key needs a password")
