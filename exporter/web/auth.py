"""Basic authentication against bcrypt hashes."""

import base64
import binascii
import hashlib
import secrets
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus

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
