"""Which users may run an expected daemon. A pipe directory in /tmp can be made by any user while it is missing.

These may: root; the exporter's own user; the user that the configuration or the daemon's unit names; and a user to whom
alone root has given the place. That is so if every directory above the pipe directory belongs to root or that user, and
no other user can write to it.
"""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from exporter.sources.place import Place

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_SOCKETS = ("control", "control_privileged")


def may_run(place: Place, uid: int | None) -> bool:
    """Return whether a daemon of this user is the expected one. If none is expected, any user may run one there."""
    if not place.expected or uid is None or uid in (0, os.geteuid(), place.owner):
        return True
    return place.pipe.root is None and _is_given_to(place.pipe.path, uid)


def foreign_listener(place: Place) -> int | None:
    """Return the user to whom a control socket there belongs, if they may not run the daemon."""
    return _foreign(place, _SOCKETS)


def foreign_user(place: Place) -> int | None:
    """Return the user to whom the pipe directory or a control socket belongs, if they may not run the daemon."""
    return _foreign(place, (".", *_SOCKETS))


def _foreign(place: Place, names: Iterable[str]) -> int | None:
    owners = (place.pipe.owner(name) for name in names) if place.expected else ()
    return next((uid for uid in owners if not may_run(place, uid)), None)


def _is_given_to(path: Path, uid: int) -> bool:
    """Return whether root alone has decided that this user may make, and replace, what is at this path."""
    try:
        real = Path(os.path.realpath(path))
        return all(_is_kept(above.lstat(), uid) for above in {*path.parents, *real.parents})
    except OSError:
        return False


def _is_kept(found: os.stat_result, uid: int) -> bool:
    """Return whether no other user can change what is in a directory. A link has no mode of its own."""
    return found.st_uid in (0, uid) and (stat.S_ISLNK(found.st_mode) or not found.st_mode & _WRITABLE_BY_OTHERS)
