"""TLS with OpenSSL, from the section `tls_server_config` of the web config file."""

import socket
import ssl
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import Any

from exporter.web.config_section import Section

_KEYS = ("cert_file", "key_file", "client_ca_file", "client_auth_type", "client_allowed_sans", "min_version")
_CLIENT_AUTH: Mapping[str, ssl.VerifyMode] = MappingProxyType(
    {"NoClientCert": ssl.CERT_NONE, "RequireAndVerifyClientCert": ssl.CERT_REQUIRED}
)
_VERSIONS: Mapping[str, ssl.TLSVersion] = MappingProxyType(
    {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
)


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
    section.refuse_others(_KEYS)
    certificate, key, client_ca = (section.file(name) for name in ("cert_file", "key_file", "client_ca_file"))
    if certificate is None:
        raise section.error("cert_file", "missing; TLS needs a certificate")
    if key is None:
        raise section.error("key_file", "missing; name the private key of the certificate")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = section.choice("client_auth_type", _CLIENT_AUTH, "NoClientCert")
    sans = section.texts("client_allowed_sans")
    if context.verify_mode is ssl.CERT_NONE:
        for name, value in (("client_ca_file", client_ca), ("client_allowed_sans", sans)):
            if value:
                raise section.error(name, "needs client_auth_type: RequireAndVerifyClientCert")
    context.minimum_version = section.choice("min_version", _VERSIONS, "TLS12")
    try:
        _load_certificate(context, section, certificate, key)
        if client_ca is not None:
            _load_authorities(context, section, "client_ca_file", client_ca)
    except OSError as error:
        raise section.error("cert_file", f"a file was replaced while it was read: {error}") from error
    if client_ca is None and context.verify_mode is not ssl.CERT_NONE:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)  # the system's authorities, as Go does
    # As exporter-toolkit does, an empty list allows all names.
    return Tls(context, frozenset(sans) if sans else None)


def _load_authorities(context: ssl.SSLContext, section: Section, key: str, path: Path) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except (ssl.SSLError, ValueError) as error:
        raise section.error(key, f"{path} contains no PEM certificate that can be read") from error


def _load_certificate(context: ssl.SSLContext, section: Section, certificate: Path, key: Path) -> None:
    def refuse_passphrase() -> str:
        """Replace OpenSSL's prompt on the terminal."""
        raise ValueError("no passphrase")

    # An error of load_cert_chain does not tell which of both files is wrong.
    _load_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), section, "cert_file", certificate)
    try:
        context.load_cert_chain(certificate, key, password=refuse_passphrase)
    except ssl.SSLError as error:
        problem = f"{key} contains no PEM private key for the certificate, or a key that is too weak"
        if error.reason == "KEY_VALUES_MISMATCH":
            problem = f"{key} is not the private key of the certificate; replace both files together"
        raise section.error("key_file", problem) from error
    except ValueError as error:
        problem = f"{key} needs a passphrase; store the key without one, readable by the exporter only"
        raise section.error("key_file", problem) from error


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
