"""Parts of the status document: severities, reasons, processes and faults; who may see them; and a filter of faults."""

from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from enum import StrEnum
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args, get_type_hints

from exporter.model.identity import Workload
from exporter.model.kernels import FaultKernels
from exporter.model.values import frozen, replace

if TYPE_CHECKING:
    from exporter.model.incident import Incident


class Severity(StrEnum):
    """How urgent a problem is: one scale wherever problems are shown."""

    WELL = "well"
    INFO = "info"
    """Nothing fails, but something could be better."""
    UNKNOWN = "unknown"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """The position on the scale; a higher one is more urgent."""
        return tuple(Severity).index(self)

    @property
    def words(self) -> str:
        """The name of the severity in a sentence."""
        return "not known yet" if self is Severity.UNKNOWN else self.value


Bytes = Mapping[str, int]
"""Bytes by the UUID of a GPU."""

MOST_LISTED = 512
"""At most so many clients of a kind are listed; their number is given, too."""

Parameter = str | int | float | tuple[int, ...]


@frozen
class ReasonStatus:
    """A reason: its code, the values that its text contains, and the text."""

    code: str
    parameters: Mapping[str, Parameter]
    text: str


@frozen
class ProcessStatus:
    """A process and its names, which its user chose. `pid` is 0 or negative if it is unknown here. None: not known.

    `held_by` are the processes that hold the connection of a client that has exited; None if it has not exited.
    """

    pid: int
    user: str | None
    command: str | None
    workload: Workload | None
    pod: str | None
    held_by: tuple[int, ...] | None = None


@frozen
class ClientIdentity(ProcessStatus):
    """A client: `client` is its id in metrics, and `memory_used_bytes` its memory on each GPU.

    `kernels_hidden` is True if its kernels are known, but the viewer may not see them (`seen_by`).
    """

    client: str | None
    uid: int | None
    unit: str | None
    container: str | None
    pod_uid: str | None
    namespace: str | None
    job_manager: str | None
    job_id: str | None
    memory_used_bytes: Bytes
    kernels_hidden: bool | None = None


@frozen
class AffectedClient(ClientIdentity):
    """A client that a fault affected, and whether it had work in flight."""

    in_flight: bool | None
    kernels: FaultKernels | None = None


@frozen
class SuspectStatus(ClientIdentity):
    """A client that may have caused a fault, with the confidence, and what indicates it."""

    confidence: float
    likelihood: str
    indications: tuple[ReasonStatus, ...]
    kernels: FaultKernels | None = None


@frozen
class BlockingClient(ClientIdentity):
    """A client that delays recovery, or did `until` then. `kill_command` ends it."""

    since: float
    until: float | None
    seconds: float
    kill_command: tuple[str, ...]


@frozen
class XidStatus:
    """An Xid of a fault, what it means, and what NVIDIA advises. `pid` and `name` are the process that it names."""

    xid: int
    at: float
    gpu: str | None
    pid: int | None
    name: str | None
    mnemonic: str | None
    meaning: str | None
    cause: str | None
    advice: str | None


@frozen
class AddressMatchStatus:
    """How well a faulting address fits the ranges of a client. `share` is the probability that it used the address."""

    pid: int
    share: float
    place: str
    distance: int
    range_bytes: int
    is_host: bool
    freed_seconds: float | None
    alike: tuple[int, ...]


@frozen
class AddressStatus:
    """The faulting address, and the clients that it fits. `texts` say what its owner needs to know."""

    address: int
    kind: str | None
    fault: str | None
    engine: str | None
    matches: tuple[AddressMatchStatus, ...]
    candidates: tuple[int, ...]
    unread: tuple[int, ...]
    texts: tuple[str, ...]


@frozen
class IncidentStatus:
    """A fault, or the death of a daemon or server, as it was known `at` a time.

    `title` names it, and `verdict` the likely cause of a fault. `leading` are the PIDs of the suspects that stand out,
    with the `likelihood` that one of them is the cause. `core_dumps` says what GPU core dumps changed. `affected` of a
    death are the clients that ended; `affected_confirmed` is whether all are known. `restart` lists what to restart.
    `refused` are PIDs of new clients. If it is `stuck`, `end_server_command` ends the server. `server` is None if the
    daemon ended. Lists are limited; the counts are not.
    """

    id: str
    at: float
    daemon: str
    server: int | None
    is_fault: bool
    state: str
    ending: str | None
    settled: bool
    kind: str
    title: str
    verdict: str
    leading: tuple[int, ...]
    likelihood: str | None
    started_at: float
    detected_at: float
    ended_at: float | None
    seconds: float | None
    gpus: tuple[str, ...]
    xids: tuple[XidStatus, ...]
    address: AddressStatus | None
    core_dumps: tuple[ReasonStatus, ...]
    affected: tuple[AffectedClient, ...]
    affected_count: int
    affected_confirmed: bool
    restart: tuple[str, ...]
    suspects: tuple[SuspectStatus, ...]
    refused: tuple[int, ...]
    refused_count: int
    blocking: tuple[BlockingClient, ...]
    blocking_count: int
    stuck: bool
    end_server_command: tuple[str, ...]

    @property
    def open(self) -> bool:
        """Whether the server is still in FAULT, or the daemon does not run again."""
        return self.ending is None

    @property
    def blockers(self) -> tuple[BlockingClient, ...]:
        """The listed clients that delay recovery now."""
        return tuple(each for each in self.blocking if each.until is None) if self.open else ()


ROOT = 0
"""The UID that sees all kernels."""

UNMAPPED_UID = 65534
"""The UID that the kernel shows for all users of other user namespaces (kernel.overflowuid). It is no owner."""

Part = TypeVar("Part")


def seen_by(viewer: int | None, part: Part) -> Part:
    """Return a part of the document as the user with the UID `viewer` may see it; None: an unknown user.

    Names of kernels show what a program computes. So each field `kernels` that is not empty is None, and
    `kernels_hidden` beside it True, unless the viewer is root, or the owner by the `uid` beside it.
    """
    if viewer == ROOT:
        return part
    if isinstance(part, tuple):
        return cast("Part", tuple(seen_by(viewer, each) for each in part))
    values: dict[str, Any] = {name: getattr(part, name) for name in _with_kernels(cast("Any", type(part)))}
    changed = {name: seen_by(viewer, each) for name, each in values.items() if each and name != "kernels"}
    if values.get("kernels") and (viewer in (None, UNMAPPED_UID) or getattr(part, "uid", None) != viewer):
        changed.update(kernels=None, kernels_hidden=True)
    return cast("Part", replace(cast("Any", part), **changed)) if changed else part


@cache
def _with_kernels(kind: Any, *outer: Any) -> tuple[Any, ...]:
    """Return the fields of a class that are `kernels` or have parts with such a field, or these parts of a type hint.

    `outer` are those of which it is a part. A class that is a part of itself may have kernels.
    """
    parts = get_type_hints(kind) if is_dataclass(kind) else dict(enumerate(get_args(kind)))
    return tuple(n for n, part in parts.items() if n == "kernels" or part in outer or _with_kernels(part, kind, *outer))


@frozen
class IncidentFilter:
    """The incident with an `id`; otherwise the newest `limit` incidents, of one daemon, or only open ones."""

    id: str | None = None
    daemon: str | None = None
    open: bool = False
    limit: int

    def apply(self, incidents: "Iterable[Incident]") -> "list[Incident]":
        """Return the incidents that match. They are expected and returned in order, the newest first."""
        if self.id is not None:
            found = (each for each in incidents if each.id == self.id)
        else:
            daemon_matches = (each for each in incidents if self.daemon in (None, each.daemon))
            found = (each for each in daemon_matches if each.open or not self.open)
        return list(islice(found, self.limit))
