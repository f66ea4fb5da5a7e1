"""TLS by OpenSSL, from what the web config file says of it."""

import contextlib
import os
import re
import socket
import ssl
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any

from exporter.web.web_config import ClientAuth, Pem, TlsConfig, TlsVersion

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_VERSIONS = {TlsVersion.TLS12: ssl.TLSVersion.TLSv1_2, TlsVersion.TLS13: ssl.TLSVersion.TLSv1_3}
_VERIFYING = {
    ClientAuth.NONE: ssl.CERT_NONE,
    # A certificate that is not verified changes nothing, so it need not be asked for either.
    ClientAuth.REQUESTED: ssl.CERT_NONE,
    ClientAuth.VERIFIED_IF_GIVEN: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED_AND_VERIFIED: ssl.CERT_REQUIRED,
}


class Tls:
    """The server's side of TLS; ConfigError where certificate, key and authorities do not make one."""

    def __init__(self, config: TlsConfig) -> None:
        self._context = _context(config)
        self._allowed = config.client_allowed_sans
        self.authenticates = config.client_auth is ClientAuth.REQUIRED_AND_VERIFIED

    def wrap(self, connection: socket.socket) -> ssl.SSLSocket:
        """The socket to speak TLS by, before any handshake; the given one is used up."""
        return self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def shake_hands(self, secured: ssl.SSLSocket) -> None:
        """Shake hands, within the socket's timeout; OSError if it comes to nothing, or with the wrong one."""
        secured.do_handshake()
        if self._allowed is not None and self._allowed.isdisjoint(_alternative_names(secured.getpeercert())):
            raise ssl.SSLError("no name in the client's certificate is allowed")


def _context(config: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[config.minimum]
    context.maximum_version = _VERSIONS[config.maximum]
    context.verify_mode = _VERIFYING[config.client_auth]
    _load_own(context, config.certificate, config.key)
    if config.client_ca is not None:
        context.load_verify_locations(cadata=_certificates(config.client_ca))
    elif context.verify_mode is not ssl.CERT_NONE:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)  # the system's authorities, as in Go
    return context


def _certificates(pem: Pem) -> bytes:
    """The certificates in it, in DER."""
    found = _CERTIFICATE.findall(pem.content.decode("ascii", "replace"))
    if not found:
        raise pem.wrong("holds no PEM certificate")
    try:
        encoded = b"".join(ssl.PEM_cert_to_DER_cert(each) for each in found)
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=encoded)
    except (ssl.SSLError, ValueError) as error:
        raise pem.wrong("holds a PEM certificate that cannot be read; copy it anew") from error
    return encoded


def _load_own(context: ssl.SSLContext, certificate: Pem, key: Pem) -> None:
    _certificates(certificate)
    with _shown(certificate.content) as certificate_path, _shown(key.content) as key_path:
        try:
            context.load_cert_chain(certificate_path, key_path, password=_no_passphrase)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise key.wrong("is not the private key of the certificate; put both in place together") from error
            raise key.wrong("holds no PEM private key for the certificate, or one too weak") from error
        except ValueError as error:
            raise key.wrong("needs a passphrase; store it without one, readable by the exporter alone") from error


def _no_passphrase() -> str:
    """Instead of OpenSSL's question on the terminal."""
    raise ValueError("no passphrase")


@contextlib.contextmanager
def _shown(content: bytes) -> Iterator[str]:
    """Bytes under a path, for a library that reads files alone; they never reach a disk."""
    descriptor = os.memfd_create("cuda-mps-exporter")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _alternative_names(certificate: Any) -> set[str]:
    """The names in a verified certificate, addresses as Python writes them: only IPv6 has several spellings."""
    return {
        _address(value) if kind == "IP Address" else value
        for kind, value in (certificate or {}).get("subjectAltName", ())
        if kind in ("DNS", "email", "IP Address", "URI")
    }


def _address(text: str) -> str:
    try:
        return str(ip_address(text.strip()))
    except ValueError:
        return text
