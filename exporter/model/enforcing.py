"""Limits on their way into force: what the watchdog remembers of them for one control daemon."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from exporter.model.identity import ProcessIdentity
from exporter.model.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Drifting:
    """A limit that is not as it should be. `since` is when that was seen; None: it is set before anybody has asked.

    `tries` is how often the command that sets it was given in vain, `tried_at` when it last was. `hopeless` says that
    it was told that this does not help.
    """

    since: float | None = None
    tries: int = 0
    tried_at: float | None = None
    hopeless: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforcing:
    """How a daemon's limits stand.

    `process` is the control daemon that they are of, where it is known. It is `restoring` while this is another one
    than before, on which they have not all been in force yet. `seen` are its defaults as last known. `drifting` has, by
    the command that sets it, each limit that is not as it should be. `exposed` has, by server, since when its clients
    have come without their limits; `sound` are the servers that have had them all. `in_force` says that all was.
    """

    process: ProcessIdentity | None = None
    restoring: bool = False
    seen: Limits = field(default_factory=Limits)
    drifting: Mapping[str, Drifting] = field(default_factory=dict)
    exposed: Mapping[int, float] = field(default_factory=dict)
    sound: tuple[int, ...] = ()
    in_force: bool = False
