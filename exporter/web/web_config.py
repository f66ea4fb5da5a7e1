"""The web config file, in the format of Prometheus' exporter-toolkit (docs/security.md), reload, authentication.

Supported are certificate, key, client authority with allowed names, minimum version and users. Any other setting is an
error: if it were ignored, a protection that the operator expects would be absent. Each error names file and key.
"""

import base64
import binascii
import hashlib
import re
import secrets
import ssl
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import structlog

from exporter.errors import ConfigError
from exporter.model.values import frozen

MAX_CACHED_LOGINS = 100
MAX_PENDING_CHECKS = 8
"""Requests that wait for a password check. They occupy connection slots, so the number is well below all slots."""

BCRYPT_PASSWORD_BYTES = 72
"""bcrypt ignores the bytes of a password after these."""

_DUMMY_HASH = "$2b${cost}$......................MJzyV43b9aDcvTqrhsQYLV6OLfx9jbe"
"""A hash of no user. The password of an unknown user is compared with it."""

CheckPassword = Callable[[bytes, bytes], bool]
"""Return whether a password has a hash."""


def bcrypt_check() -> CheckPassword:
    """Return bcrypt's comparison; ConfigError if bcrypt is not installed."""
    try:
        import bcrypt
    except ImportError as error:
        raise ConfigError(
            "--web.config.file: basic_auth_users needs bcrypt: pip install 'cuda-mps-exporter[web]'"
        ) from error
    return bcrypt.checkpw


class BasicAuth:
    """The users of the web config file. Safe to use from several threads.

    A check takes 0.1 s of CPU time or more, so only one runs at a time. An accepted login is cached as a keyed digest;
    a wrong password is checked each time. The password of an unknown user is checked too, at the highest cost in use.
    So the response time does not reveal which users exist, if all hashes have the same cost.
    """

    def __init__(self, users: Mapping[str, str], check: CheckPassword) -> None:
        self._hashes = {name.encode(): hashed.encode() for name, hashed in users.items()}
        cost = max((each[4:6].decode() for each in self._hashes.values()), default="10")
        self._dummy_hash = _DUMMY_HASH.format(cost=cost).encode()
        self._check = check
        self._checking = threading.Lock()
        self._pending = threading.BoundedSemaphore(MAX_PENDING_CHECKS)
        self._cached: dict[bytes, None] = {}
        """Digests of accepted logins, oldest first."""
        self._digest_key = secrets.token_bytes(32)

    def verdict(self, authorization: str) -> HTTPStatus:
        """Check the value of an Authorization header.

        Return OK, UNAUTHORIZED, or SERVICE_UNAVAILABLE if too many other requests wait for a password check.
        """
        credentials = _credentials(authorization)
        if credentials is None:
            return HTTPStatus.UNAUTHORIZED
        name, password = credentials
        # The digest is useless without this process's key. The password itself is never stored.
        digest = hashlib.blake2b(name + b":" + password, key=self._digest_key).digest()
        if digest in self._cached:
            return HTTPStatus.OK
        if not self._pending.acquire(blocking=False):
            return HTTPStatus.SERVICE_UNAVAILABLE
        try:
            with self._checking:
                matches = self._check(password[:BCRYPT_PASSWORD_BYTES], self._hashes.get(name, self._dummy_hash))
                if not (matches and name in self._hashes):
                    return HTTPStatus.UNAUTHORIZED
                self._cached[digest] = None
                if len(self._cached) > MAX_CACHED_LOGINS:
                    del self._cached[next(iter(self._cached))]
        finally:
            self._pending.release()
        return HTTPStatus.OK


def _credentials(authorization: str) -> tuple[bytes, bytes] | None:
    """Return name and password; a name cannot contain a colon (RFC 7617)."""
    scheme, _, encoded = authorization.strip().partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (name, password) if colon else None


MAX_FILE_BYTES = 1 << 20

_KEYS: Mapping[str, Collection[str] | None] = {
    "tls_server_config": (
        *("cert_file", "key_file", "client_ca_file", "client_auth_type", "client_allowed_sans", "min_version"),
    ),
    "basic_auth_users": None,
}
"""The supported keys of each section; None if all are."""

_TLS, _USERS = (f"{section}." for section in _KEYS)
_CLIENT_AUTH = {"NoClientCert": ssl.CERT_NONE, "RequireAndVerifyClientCert": ssl.CERT_REQUIRED}
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}

_BCRYPT = re.compile(r"\$2[aby]\$(?:0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}")
"""22 characters hold a salt of 128 bits, so the last one has four possible values."""

_FileVersion = tuple[int, int, int, int]
"""Inode, size, and the times of the last changes of content and inode."""


@frozen
class Protection:
    """The protection of a connection. `client_names` are those that TLS allows in client certificates; None: all."""

    tls: ssl.SSLContext | None = None
    client_names: frozenset[str] | None = None
    users: BasicAuth | None = None

    @property
    def authenticates_by_tls(self) -> bool:
        """Whether each client has shown a verified certificate."""
        return self.tls is not None and self.tls.verify_mode is ssl.CERT_REQUIRED

    def missing_from(self, other: "Protection") -> str | None:
        """Return a protection that this one has and the other lacks."""
        if self.tls is not None and other.tls is None:
            return "TLS"
        if self.users is not None and other.users is None:
            return "basic authentication"
        return "client certificates" if self.authenticates_by_tls and not other.authenticates_by_tls else None

    def handshake(self, secured: ssl.SSLSocket) -> None:
        """Do the handshake within the socket's timeout; OSError if it fails or the client is not allowed."""
        secured.do_handshake()
        if self.client_names is not None and self.client_names.isdisjoint(_names(secured.getpeercert())):
            raise ssl.SSLError("no name in the client's certificate is allowed")


class WebSecurity:
    """A web config file that is reloaded when it changes. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        """Read the file; ConfigError if it cannot be used."""
        self._reloading = threading.Lock()
        self._problem: str | None = None
        self._file = _File(path)
        self._protection = self._file.protection()

    def current(self) -> Protection:
        """Return the protection in force, after a reload if the files have changed.

        If they cannot be used now, the previous protection stays in force, and each call tries again: a certificate is
        often replaced a moment before its key. One caller at a time reads the files; the others do not wait.
        """
        if self._reloading.acquire(blocking=False):
            try:
                versions = self._file.versions.items()
                if self._problem is not None or any(_version(path) != version for path, version in versions):
                    self._reload()
            finally:
                self._reloading.release()
        return self._protection

    def _reload(self) -> None:
        self._file = _File(self._file.path)
        try:
            protection = self._file.protection()
            removed = self._protection.missing_from(protection)
            if removed is not None:
                # A file that is being written looks the same.
                raise self._file.error("", f"no longer requires {removed}; restart the exporter to remove it")
        except ConfigError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                structlog.get_logger().error(
                    "web_config_reload_failed", problem=str(error), now="the previous configuration stays in force"
                )
            return
        self._protection, self._problem = protection, None
        structlog.get_logger().info("web_config_reloaded", file=str(self._file.path))


class _File:
    """A web config file, with the versions of all files that are read for it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.versions: dict[Path, _FileVersion | None] = {}
        self._values: dict[str, object] = {}
        """The values of all sections, by section and key with a full stop between them."""

    def error(self, key: str, problem: str) -> ConfigError:
        """Return an error that names the file and, if there is one, the key."""
        return ConfigError(f"--web.config.file: {self.path}: {key}{': ' if key else ''}{problem}")

    def read(self, path: Path) -> bytes:
        """Read a file; OSError if it cannot be read or is larger than `MAX_FILE_BYTES`."""
        self.versions[path] = _version(path)
        with path.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise OSError(0, f"larger than {MAX_FILE_BYTES} bytes")
        return content

    def protection(self) -> Protection:
        """Read the file and those that it names; ConfigError if they cannot be used."""
        try:
            document = _parsed(self.read(self.path))
        except OSError as error:
            problem = f"cannot be read: {error.strerror}; correct the path or the rights"
            raise self.error("", problem) from error
        except ValueError as error:
            raise self.error("", f"cannot be read: {error}") from error
        for section, values in self._mapping("", document, _KEYS).items():
            for key, value in self._mapping(f"{section}.", values, _KEYS[section]).items():
                self._values[f"{section}.{key}"] = value
        users = {key.removeprefix(_USERS): self._text(key) for key in self._values if key.startswith(_USERS)}
        for name, hashed in users.items():
            if ":" in name:
                raise self.error(_USERS + name, "invalid user name: basic authentication does not allow a colon")
            if _BCRYPT.fullmatch(hashed) is None:
                advice = "create one with: htpasswd -nBC 10 NAME"
                raise self.error(_USERS + name, f"not a bcrypt hash ($2a$, $2b$ or $2y$); {advice}")
        protection = Protection(users=BasicAuth(users, bcrypt_check()) if users else None)
        return self._with_tls(protection) if any(key.startswith(_TLS) for key in self._values) else protection

    def _mapping(self, place: str, value: object, supported: Collection[str] | None) -> Mapping[str, object]:
        """Return a mapping, an empty one if there is none; ConfigError for a key that is not supported."""
        if value in (None, "", "~", "null"):
            return {}
        if not isinstance(value, dict):
            raise self.error(place.rstrip("."), "must be a mapping (`key: value` lines)")
        for key in value:
            if supported is not None and key not in supported:
                raise self.error(place + key, f"not supported; remove it (supported: {', '.join(supported)})")
        return value

    def _text(self, key: str, default: str = "") -> str:
        """Return a text; the default if it is absent or blank."""
        value = self._values.get(key, "")
        if not isinstance(value, str):
            raise self.error(key, "must be a single value")
        return value if value.strip() else default

    def _choice(self, key: str, values: Mapping[str, Any], default: str) -> Any:
        word = self._text(key, default)
        if word not in values:
            raise self.error(key, f"{word!r} is not supported; use {' or '.join(values)}")
        return values[word]

    def _readable(self, key: str) -> Path | None:
        """Return the path of a readable file; None if the key is absent."""
        named = self._text(key)
        if not named:
            return None
        path = self.path.parent / named
        try:
            self.read(path)
        except (OSError, ValueError) as error:
            raise self.error(key, f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
        return path

    def _with_tls(self, protection: Protection) -> Protection:
        certificate, key, authority = (
            self._readable(_TLS + name) for name in ("cert_file", "key_file", "client_ca_file")
        )
        if certificate is None or key is None:
            missing = "cert_file" if certificate is None else "key_file"
            raise self.error(_TLS + missing, "missing; TLS needs a certificate and its private key")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = self._choice(_TLS + "client_auth_type", _CLIENT_AUTH, "NoClientCert")
        context.minimum_version = self._choice(_TLS + "min_version", _VERSIONS, "TLS12")
        names = self._values.get(_TLS + "client_allowed_sans")
        if names is not None and not (
            names and isinstance(names, list) and all(isinstance(name, str) for name in names)
        ):
            problem = "must be a list of one or more names; without it, all are allowed"
            raise self.error(_TLS + "client_allowed_sans", problem)
        if context.verify_mode is ssl.CERT_NONE:
            for name, value in (("client_ca_file", authority), ("client_allowed_sans", names)):
                if value is not None:
                    raise self.error(_TLS + name, "needs client_auth_type: RequireAndVerifyClientCert")
        elif authority is None:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)  # the system's authorities, as Go does
        try:
            context.load_cert_chain(certificate, key, password="")  # OpenSSL would ask for one on the terminal
        except (OSError, ValueError) as error:
            problem = (
                f"{key} is not the private key of the certificate; replace both files together"
                if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH"
                else f"{certificate} is no PEM certificate, or {key} is no PEM private key for it that is strong enough"
                " and needs no passphrase"
            )
            raise self.error(_TLS + "key_file", problem) from error
        try:
            if authority is not None:
                context.load_verify_locations(cafile=authority)
        except (OSError, ValueError) as error:
            problem = f"{authority} contains no PEM certificate that can be read"
            raise self.error(_TLS + "client_ca_file", problem) from error
        return replace(protection, tls=context, client_names=frozenset(names) if isinstance(names, list) else None)


def _version(path: Path) -> _FileVersion | None:
    """Return the current version of a file; None if it cannot be found."""
    with suppress(OSError):
        status = path.stat()
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    return None


def _parsed(content: bytes) -> object:
    """Return the content of a YAML file. All scalars are text, as in exporter-toolkit: a user can be called `yes`.

    ValueError for another file, without its lines, because they can contain a key.
    """
    try:
        import yaml
    except ImportError as error:
        raise ConfigError("--web.config.file needs PyYAML: pip install 'cuda-mps-exporter[web]'") from error

    class Loader(yaml.BaseLoader):
        """A loader that refuses duplicate keys."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
            mapping = super().construct_mapping(node, deep)
            if len(mapping) < len(node.value):
                raise yaml.constructor.ConstructorError(
                    problem="duplicate key; remove one", problem_mark=node.start_mark
                )
            return mapping

    try:
        return yaml.load(content.decode(), Loader)  # noqa: S506 (it makes only text, lists and mappings)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = "" if mark is None else f"line {mark.line + 1}: "
        raise ValueError(f"{line}invalid YAML: {problem or type(error).__name__}") from error


def _names(certificate: Any) -> set[str]:
    """Return the names in a verified certificate. IP addresses are normalized, because IPv6 has several spellings."""
    names = set()
    for kind, name in (certificate or {}).get("subjectAltName", ()):
        if kind in ("DNS", "email", "URI"):
            names.add(name)
        elif kind == "IP Address":
            with suppress(ValueError):
                names.add(str(ip_address(name.strip())))
    return names
