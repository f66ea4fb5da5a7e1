"""Basic authentication against bcrypt hashes: slow to guess, cheap for who is known, and silent about who exists."""

import base64
import binascii
import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import Enum, auto

from exporter.errors import ConfigError

MOST_REMEMBERED = 100
MOST_WAITING = 8
"""Requests whose password waits to be checked; they keep their places, and there must be some for others."""

LONGEST_PASSWORD = 72
"""Bytes of a password that bcrypt looks at."""

_NOBODY = "$2b${cost}$......................MJzyV43b9aDcvTqrhsQYLV6OLfx9jbe"
"""A hash that no user has, to be compared with where a user is not known."""

Check = Callable[[bytes, bytes], bool]
"""Whether a password has this hash."""


class Verdict(Enum):
    """What came of a request's credentials."""

    ADMITTED = auto()
    REFUSED = auto()
    BUSY = auto()
    """Too many others wait to be checked."""


def bcrypt_check() -> Check:
    """Bcrypt's own comparison; ConfigError where it is not installed."""
    try:
        import bcrypt
    except ImportError as error:
        raise ConfigError(
            "--web.config.file: basic_auth_users needs bcrypt: pip install 'cuda-mps-exporter[web]'"
        ) from error
    return bcrypt.checkpw


class BasicAuth:
    """The users who may see anything at all. Safe to use from several threads.

    Passwords are checked one at a time, as each takes a processor for a tenth of a second or more. Whoever was
    admitted is remembered, by a keyed digest; a wrong password is checked anew each time. An unknown user's is checked
    too, against nobody's hash at the cost of the costliest, so that time does not tell who exists (where all hashes
    cost the same).
    """

    def __init__(self, users: Mapping[str, str], check: Check) -> None:
        self._hashes = {name.encode(): hashed.encode() for name, hashed in users.items()}
        self._nobody = _NOBODY.format(cost=max((each[4:6].decode() for each in self._hashes.values()), default="10"))
        self._check = check
        self._checking = threading.Lock()
        self._waiting = threading.BoundedSemaphore(MOST_WAITING)
        self._remembered: OrderedDict[bytes, None] = OrderedDict()
        self._remembering = threading.Lock()
        self._digest_key = secrets.token_bytes(32)

    def verdict(self, authorization: str) -> Verdict:
        """What an Authorization header earns."""
        credentials = _credentials(authorization)
        if credentials is None:
            return Verdict.REFUSED
        name, password = credentials
        if self._remembers(name, password):
            return Verdict.ADMITTED
        if not self._waiting.acquire(blocking=False):
            return Verdict.BUSY
        try:
            admitted = self._is_right(name, password)
        finally:
            self._waiting.release()
        if not admitted:
            return Verdict.REFUSED
        self._remember(name, password)
        return Verdict.ADMITTED

    def _is_right(self, name: bytes, password: bytes) -> bool:
        hashed = self._hashes.get(name)
        with self._checking:
            matches = self._check(password[:LONGEST_PASSWORD], self._nobody.encode() if hashed is None else hashed)
        return matches and hashed is not None

    def _remembers(self, name: bytes, password: bytes) -> bool:
        digest = self._digest(name, password)
        with self._remembering:
            if digest not in self._remembered:
                return False
            self._remembered.move_to_end(digest)
            return True

    def _remember(self, name: bytes, password: bytes) -> None:
        digest = self._digest(name, password)
        with self._remembering:
            self._remembered[digest] = None
            while len(self._remembered) > MOST_REMEMBERED:
                self._remembered.popitem(last=False)

    def _digest(self, name: bytes, password: bytes) -> bytes:
        """Of no use without this process's memory, where the password itself is never kept."""
        return hashlib.blake2b(name + b":" + password, key=self._digest_key).digest()


def _credentials(authorization: str) -> tuple[bytes, bytes] | None:
    """Name and password; a name cannot hold a colon (RFC 7617)."""
    scheme, _, encoded = authorization.strip().partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (name, password) if colon else None
