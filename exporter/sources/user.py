"""As whom a child process runs."""

import ctypes
import errno
import os
import pwd
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from exporter.parse.proc import effective_capabilities

CAP_SETGID, CAP_SETUID = 6, 7
"""Their numbers (linux/capability.h)."""

NOBODYS_GROUP = 65534
"""For a user whom the password database does not know: this process's own groups are not for him."""

NO_UID = 2**32 - 1
"""(uid_t) -1 is no user (setuid(2))."""

PR_SET_NO_NEW_PRIVS = 38
_CAPSET_VERSION = 0x20080522
"""capset(2): two masks of effective, permitted and inheritable capabilities each."""

_STATUS = Path("/proc/thread-self/status")


@dataclass(frozen=True, slots=True)
class User:
    """A user and his groups; None: those of this process."""

    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] | None = None


OURSELVES = User()


def user(uid: int | None) -> User:
    """The user with this UID; ourselves where that is nobody else, or None.

    Raises PermissionError where no child of this process can be somebody else's.
    """
    if uid is None or uid == os.geteuid():
        return OURSELVES
    if not may_be_others():
        raise PermissionError(errno.EPERM, f"it takes CAP_SETUID and CAP_SETGID to start a process as UID {uid}")
    try:
        known = pwd.getpwuid(uid)
    except (KeyError, OverflowError):
        return User(uid, NOBODYS_GROUP, (NOBODYS_GROUP,))
    return User(uid, known.pw_gid, tuple(os.getgrouplist(known.pw_name, known.pw_gid)))


def uid_of(name: str) -> int | None:
    """Return the UID of a user by name or number; None if the password database does not know the name."""
    if name.isascii() and name.isdecimal():
        return int(name) if int(name) < NO_UID else None
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return None


def disarming() -> Callable[[], None]:
    """What a child does right before its program, when it is its user already: it lets go of all capabilities.

    Root's programs would have ours otherwise. All is made ready here, since little may be done after a fork.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    header, none = (ctypes.c_uint32 * 2)(_CAPSET_VERSION, 0), (ctypes.c_uint32 * 6)()

    def disarm() -> None:
        if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.capset(header, none):
            raise OSError(ctypes.get_errno(), "capabilities cannot be let go of")

    return disarm


def may_be_others() -> bool:
    """Whether a child of this thread can become any user."""
    try:
        held = effective_capabilities(_STATUS.read_text(errors="replace"))
    except OSError:
        return False
    return all(held >> capability & 1 for capability in (CAP_SETGID, CAP_SETUID))
