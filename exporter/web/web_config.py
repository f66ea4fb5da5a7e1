"""The web config file, in the format of Prometheus' exporter-toolkit (docs/web-configuration.md).

What is written in it is done. What this server cannot do (Go's names of ciphers and curves, HTTP/2, rate limits) is
refused by name, as a setting that is silently left out would be a protection that is not there.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from exporter.errors import ConfigError
from exporter.web.document import Section, read_document
from exporter.web.file import File, Version, read_file

_SECTIONS = ("tls_server_config", "http_server_config", "basic_auth_users")
_TLS = (
    "cert", "key", "client_ca", "cert_file", "key_file", "client_ca_file", "client_auth_type", "client_allowed_sans",
    "min_version", "max_version",
)  # fmt: skip
_NOT_DONE = {
    "rate_limit": "requests are not limited by rate here (those served at once are: --web.max-requests)",
    "cipher_suites": "Go's names of ciphers mean nothing here; OpenSSL's own choice is used, and min_version: TLS13"
    " leaves its strongest alone",
    "prefer_server_cipher_suites": "ciphers cannot be chosen here; OpenSSL's own choice is used",
    "curve_preferences": "Go's names of curves mean nothing here; OpenSSL's own choice is used",
}
_HEADERS: Mapping[str, Sequence[str]] = {
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
    "Content-Security-Policy": (),
}
"""The headers that may be set, with the values that they may have; none where any will do (exporter-toolkit
web/handler.go)."""

_BCRYPT = re.compile(r"\$2[aby]\$(?:0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}")
"""A salt of 128 bits in 22 characters leaves four choices for the last."""

_FALSE = ("false", "no", "off")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*")


class ClientAuth(StrEnum):
    """Whether clients are asked for certificates, by the names of Go's crypto/tls."""

    NONE = "NoClientCert"
    REQUESTED = "RequestClientCert"
    VERIFIED_IF_GIVEN = "VerifyClientCertIfGiven"
    REQUIRED_AND_VERIFIED = "RequireAndVerifyClientCert"


class TlsVersion(StrEnum):
    """The versions that are spoken; older ones are broken, and OpenSSL leaves them out."""

    TLS12 = "TLS12"
    TLS13 = "TLS13"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pem:
    """What is in a PEM file, or stands in the config file itself, and how to speak of it."""

    content: bytes
    place: str
    file: File | None = None

    def wrong(self, what: str) -> ConfigError:
        """What is wrong with it."""
        return ConfigError(f"{self.place}: {what}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """How to speak TLS."""

    certificate: Pem
    key: Pem
    client_ca: Pem | None = None
    client_auth: ClientAuth = ClientAuth.NONE
    client_allowed_sans: frozenset[str] | None = None
    minimum: TlsVersion = TlsVersion.TLS12
    maximum: TlsVersion = TlsVersion.TLS13


@dataclass(frozen=True, slots=True, kw_only=True)
class WebConfig:
    """What the file says, and which versions of which files it stands on."""

    tls: TlsConfig | None
    users: Mapping[str, str]
    headers: Mapping[str, str]
    files: Mapping[Path, Version]


def read_web_config(path: Path) -> WebConfig:
    """Read the file and those that it names, relative to it; ConfigError says what is wrong, where, and what to do."""
    try:
        file = read_file(path)
    except OSError as error:
        raise ConfigError(f"--web.config.file: {path}: cannot be read: {error.strerror}") from error
    document = read_document(file)
    _refuse_others(document, _SECTIONS)
    tls = _tls(document.section("tls_server_config"), path.parent)
    pems = () if tls is None else (tls.certificate, tls.key, tls.client_ca)
    files = (file, *(pem.file for pem in pems if pem is not None and pem.file is not None))
    return WebConfig(
        tls=tls,
        users=_users(document.section("basic_auth_users")),
        headers=_headers(document.section("http_server_config")),
        files={each.path: each.version for each in files},
    )


def _refuse_others(section: Section, known: Sequence[str]) -> None:
    for key in section.keys:
        if key in _NOT_DONE:
            raise section.wrong(key, f"cannot be honoured, so take it out: {_NOT_DONE[key]}")
        if key not in known:
            raise section.wrong(key, f"no such key; there are {', '.join(known)}")


def _tls(section: Section, directory: Path) -> TlsConfig | None:
    if not section.keys:
        return None
    _refuse_others(section, _TLS)
    certificate, key = _pem(section, "cert", directory), _pem(section, "key", directory)
    if certificate is None:
        raise section.wrong("cert_file", "missing, and so is cert; without a certificate there is no TLS")
    if key is None:
        raise section.wrong("key_file", "missing, and so is key; name the private key of the certificate")
    client_ca, client_auth = _pem(section, "client_ca", directory), _client_auth(section)
    if client_ca is not None and client_auth is ClientAuth.NONE:
        raise section.wrong("client_auth_type", "missing, so client_ca has no effect; write RequireAndVerifyClientCert")
    sans = section.texts("client_allowed_sans")
    if sans is not None and client_auth is not ClientAuth.REQUIRED_AND_VERIFIED:
        raise section.wrong("client_allowed_sans", "needs client_auth_type: RequireAndVerifyClientCert")
    minimum, maximum = (
        _version(section, "min_version", TlsVersion.TLS12),
        _version(section, "max_version", TlsVersion.TLS13),
    )
    if minimum > maximum:
        raise section.wrong("max_version", f"is below min_version, {minimum}, so nobody could connect; raise it")
    return TlsConfig(
        certificate=certificate,
        key=key,
        client_ca=client_ca,
        client_auth=client_auth,
        client_allowed_sans=None if sans is None else frozenset(sans),
        minimum=minimum,
        maximum=maximum,
    )


def _pem(section: Section, key: str, directory: Path) -> Pem | None:
    inline, named = section.text(key), section.text(f"{key}_file")
    if inline is not None and named is not None:
        raise section.wrong(key, f"is there beside {key}_file; keep one of them")
    if inline is not None:
        return Pem(content=inline.encode(), place=section.place(key))
    if named is None:
        return None
    try:
        file = read_file(directory / named)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise section.wrong(f"{key}_file", f"{directory / named} cannot be read: {reason}") from error
    return Pem(content=file.content, place=f"{section.place(f'{key}_file')}: {file.path}", file=file)


def _client_auth(section: Section) -> ClientAuth:
    written = section.text("client_auth_type")
    if written in ("RequireAnyClientCert", "RequireClientCert"):
        raise section.wrong(
            "client_auth_type",
            f"{written} cannot be honoured, as a certificate that is asked for is verified here; one that is not proves"
            " nothing. Write RequireAndVerifyClientCert",
        )
    try:
        return ClientAuth.NONE if written is None else ClientAuth(written)
    except ValueError as error:
        raise section.wrong("client_auth_type", f"{written!r} is none of {', '.join(ClientAuth)}") from error


def _version(section: Section, key: str, default: TlsVersion) -> TlsVersion:
    written = section.text(key)
    if written in ("TLS10", "TLS11"):
        raise section.wrong(key, f"{written} is broken and not spoken here; write TLS12 or TLS13")
    try:
        return default if written is None else TlsVersion(written)
    except ValueError as error:
        raise section.wrong(key, f"{written!r} is no TLS version; write TLS12 or TLS13") from error


def _users(section: Section) -> Mapping[str, str]:
    users = {name: section.text(name) or "" for name in section.keys}
    for name, hashed in users.items():
        if ":" in name:
            raise section.wrong(name, "basic authentication cannot carry a name with a colon; choose another")
        if _BCRYPT.fullmatch(hashed) is None:
            raise section.wrong(name, "no bcrypt hash ($2a$, $2b$ or $2y$); make one with: htpasswd -nBC 10 NAME")
    return users


def _headers(section: Section) -> Mapping[str, str]:
    _refuse_others(section, ("http2", "headers"))
    if (section.text("http2") or "false").lower() not in _FALSE:
        raise section.wrong(
            "http2", "is not spoken here; write false, or take it out: clients use HTTP/1 by themselves"
        )
    written = section.section("headers")
    _refuse_others(written, tuple(_HEADERS))
    headers = {name: written.text(name) for name in written.keys}
    for name, value in headers.items():
        allowed = _HEADERS[name]
        if allowed and value not in allowed:
            raise written.wrong(name, f"{value!r} is none of {', '.join(allowed)}")
        if value is not None and _HEADER_VALUE.fullmatch(value) is None:
            raise written.wrong(name, "must be one line of plain characters")
    return {name: value for name, value in headers.items() if value is not None}
