"""Claims: what a daemon's logs say, as long as no other source has confirmed it."""

from dataclasses import dataclass
from enum import Enum, StrEnum, auto


class ClaimKind(StrEnum):
    """What a log line says that a tenant could have forged."""

    DAEMON_EXIT = "daemon_exit"
    SERVER_START = "server_start"
    SERVER_EXIT = "server_exit"
    CRASH_LOOP = "crash_loop"
    CLIENT_CONNECT = "client_connect"
    CLIENT_DISCONNECT = "client_disconnect"
    CLIENT_REFUSED = "client_refused"
    CONTAINED_FAULT = "contained_fault"
    FAULT = "fault"
    RECOVERY = "recovery"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim, read at `at`. `pid` is the client or the server that it is about; 0: the daemon itself."""

    kind: ClaimKind
    pid: int
    at: float

    @property
    def key(self) -> str:
        """What tells it from the daemon's other claims."""
        return key(self.kind, self.pid)


def key(kind: ClaimKind, pid: int) -> str:
    """Return what a claim of this kind, about this process, is known by."""
    return f"{kind.value} {pid}"


class Verdict(Enum):
    """What the other sources say of a claim; SETTLED: there is nothing left to decide."""

    OPEN = auto()
    CONFIRMED = auto()
    REFUTED = auto()
    SETTLED = auto()
