"""Access rules: basic authentication against bcrypt hashes, and which visitors can see private pages."""

import base64
import binascii
import contextlib
import hashlib
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from ipaddress import IPv6Address, ip_address

from exporter.errors import ConfigError

MAX_CACHED_LOGINS = 100
MAX_PENDING_CHECKS = 8
"""Requests that wait for a password check. They occupy connection slots, so the number is well below all slots."""

BCRYPT_PASSWORD_BYTES = 72
"""bcrypt ignores the bytes of a password after these."""

_DUMMY_HASH = "$2b${cost}$......................MJzyV43b9aDcvTqrhsQYLV6OLfx9jbe"
"""A hash of no user. The password of an unknown user is compared with it."""

CheckPassword = Callable[[bytes, bytes], bool]
"""Return whether a password has a hash."""


class Verdict(Enum):
    """Result of the check of a request's credentials."""

    ADMITTED = auto()
    REFUSED = auto()
    BUSY = auto()
    """Too many other requests wait for a password check."""


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

    def verdict(self, authorization: str) -> Verdict:
        """Check the value of an Authorization header."""
        credentials = _credentials(authorization)
        if credentials is None:
            return Verdict.REFUSED
        name, password = credentials
        # The digest is useless without this process's key. The password itself is never stored.
        digest = hashlib.blake2b(name + b":" + password, key=self._digest_key).digest()
        if digest in self._cached:
            return Verdict.ADMITTED
        if not self._pending.acquire(blocking=False):
            return Verdict.BUSY
        try:
            with self._checking:
                matches = self._check(password[:BCRYPT_PASSWORD_BYTES], self._hashes.get(name, self._dummy_hash))
                if not (matches and name in self._hashes):
                    return Verdict.REFUSED
                self._cached[digest] = None
                if len(self._cached) > MAX_CACHED_LOGINS:
                    del self._cached[next(iter(self._cached))]
        finally:
            self._pending.release()
        return Verdict.ADMITTED


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """The sender of a request, as far as the server knows it without trusting a header."""

    peer: str = ""
    host: str = ""
    """The Host header."""
    proxied: bool = False
    """Whether a header shows that a proxy forwarded the request."""
    authenticated: bool = False
    """Whether the visitor gave a password or a required and verified client certificate."""


def may_see_private(visitor: Visitor) -> bool:
    """Return whether this visitor can see pages that name users and workloads.

    A proxy header is never believed, but it shows that the loopback peer is a proxy, whose client is unknown. The Host
    header must name this machine, because DNS rebinding makes a local browser send requests for a foreign page.
    """
    if visitor.authenticated:
        return True
    host = visitor.host.strip()
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return is_loopback(visitor.peer) and not visitor.proxied and (name.lower() == "localhost" or is_loopback(name))


def is_loopback(text: str) -> bool:
    """Return whether this is a loopback address. IPv4 can be mapped into IPv6."""
    with contextlib.suppress(ValueError):
        address = ip_address(text)
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return (mapped or address).is_loopback
    return False
