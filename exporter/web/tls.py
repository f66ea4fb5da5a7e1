"""TLS with OpenSSL, from the section `tls_server_config` of the web config file."""

import contextlib
import os
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from types import MappingProxyType
from typing import Any

from exporter.web.config_section import Pem, Section

_KEYS = (
    "cert", "key", "client_ca", "cert_file", "key_file", "client_ca_file", "client_auth_type", "client_allowed_sans",
    "min_version", "max_version",
)  # fmt: skip
_UNSUPPORTED_KEYS = MappingProxyType(
    {
        "cipher_suites": "the names are those of Go's TLS; OpenSSL selects the ciphers, and min_version: TLS13 allows"
        " the strongest only",
        "prefer_server_cipher_suites": "OpenSSL selects the ciphers",
        "curve_preferences": "the names are those of Go's TLS; OpenSSL selects the curves",
    }
)
_UNVERIFIED = "the server verifies each certificate that it requests; use RequireAndVerifyClientCert"
_BROKEN = "this version is insecure; use TLS12 or TLS13"
_REFUSED_VALUES = MappingProxyType(
    {"RequireAnyClientCert": _UNVERIFIED, "RequireClientCert": _UNVERIFIED, "TLS10": _BROKEN, "TLS11": _BROKEN}
)
_CLIENT_AUTH: Mapping[str, ssl.VerifyMode] = MappingProxyType(
    {
        "NoClientCert": ssl.CERT_NONE,
        # An unverified certificate grants nothing, so the server does not request it.
        "RequestClientCert": ssl.CERT_NONE,
        "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
        "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
    }
)
_VERSIONS: Mapping[str, ssl.TLSVersion] = MappingProxyType(
    {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
)
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


class Tls:
    """The server side of TLS."""

    def __init__(self, context: ssl.SSLContext, allowed_sans: frozenset[str] | None) -> None:
        self._context = context
        self._allowed_sans = allowed_sans
        self.authenticates = context.verify_mode is ssl.CERT_REQUIRED
        """Whether each client has shown a verified certificate."""

    def wrap(self, connection: socket.socket) -> ssl.SSLSocket:
        """Return the TLS socket before its handshake; the given socket cannot be used any more."""
        return self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def handshake(self, secured: ssl.SSLSocket) -> None:
        """Do the handshake within the socket's timeout; OSError if it fails or the client is not allowed."""
        secured.do_handshake()
        if self._allowed_sans is not None and self._allowed_sans.isdisjoint(_alternative_names(secured.getpeercert())):
            raise ssl.SSLError("no name in the client's certificate is allowed")


def read_tls(section: Section) -> Tls | None:
    """Read the section; None if it is empty, ConfigError if its values or files cannot be used."""
    if not section.keys:
        return None
    section.refuse_unknown(_KEYS, _UNSUPPORTED_KEYS)
    certificate, key, client_ca = section.pem("cert"), section.pem("key"), section.pem("client_ca")
    if certificate is None:
        raise section.error("cert_file", "missing; TLS needs a certificate (cert_file or cert)")
    if key is None:
        raise section.error("key_file", "missing; name the private key of the certificate (key_file or key)")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = section.choice("client_auth_type", _CLIENT_AUTH, "NoClientCert", _REFUSED_VALUES)
    if client_ca is not None and section.text("client_auth_type") in (None, "NoClientCert"):
        raise section.error("client_auth_type", "missing, so client_ca has no effect; use RequireAndVerifyClientCert")
    sans = section.texts("client_allowed_sans")
    if sans is not None and context.verify_mode is not ssl.CERT_REQUIRED:
        raise section.error("client_allowed_sans", "needs client_auth_type: RequireAndVerifyClientCert")
    minimum = section.choice("min_version", _VERSIONS, "TLS12", _REFUSED_VALUES)
    maximum = section.choice("max_version", _VERSIONS, "TLS13", _REFUSED_VALUES)
    if minimum > maximum:
        raise section.error("max_version", "is below min_version, so no client could connect; raise it")
    context.minimum_version, context.maximum_version = minimum, maximum
    _load_certificate(context, certificate, key)
    if client_ca is not None:
        context.load_verify_locations(cadata=_certificates(client_ca))
    elif context.verify_mode is not ssl.CERT_NONE:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)  # the system's authorities, as Go does
    return Tls(context, None if sans is None else frozenset(sans))


def _certificates(pem: Pem) -> bytes:
    """Return the certificates in DER."""
    found = _CERTIFICATE.findall(pem.content.decode("ascii", "replace"))
    if not found:
        raise pem.error("contains no PEM certificate")
    try:
        encoded = b"".join(ssl.PEM_cert_to_DER_cert(each) for each in found)
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=encoded)
    except (ssl.SSLError, ValueError) as error:
        raise pem.error("contains a PEM certificate that cannot be read; copy it again") from error
    return encoded


def _load_certificate(context: ssl.SSLContext, certificate: Pem, key: Pem) -> None:
    def refuse_passphrase() -> str:
        """Replace OpenSSL's prompt on the terminal."""
        raise ValueError("no passphrase")

    _certificates(certificate)
    with _as_file(certificate.content) as certificate_path, _as_file(key.content) as key_path:
        try:
            context.load_cert_chain(certificate_path, key_path, password=refuse_passphrase)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise key.error("is not the private key of the certificate; replace both files together") from error
            raise key.error("contains no PEM private key for the certificate, or a key that is too weak") from error
        except ValueError as error:
            raise key.error("needs a passphrase; store the key without one, readable by the exporter only") from error


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Provide bytes under a path without writing them to a disk, because OpenSSL reads keys from files only."""
    descriptor = os.memfd_create("cuda-mps-exporter")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _alternative_names(certificate: Any) -> set[str]:
    """Return the names in a verified certificate. IP addresses are normalized, because IPv6 has several spellings."""
    return {
        _normalized(value) if kind == "IP Address" else value
        for kind, value in (certificate or {}).get("subjectAltName", ())
        if kind in ("DNS", "email", "IP Address", "URI")
    }


def _normalized(address: str) -> str:
    try:
        return str(ip_address(address.strip()))
    except ValueError:
        return address
