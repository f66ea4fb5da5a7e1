"""Quarantine: if a GPU needs a reset or a reboot, a restart of MPS would not help, and may do harm."""

from collections.abc import Iterator

from exporter.core import devices
from exporter.core.watchdog.matter import Matter, Told
from exporter.model.event import Event, EventName
from exporter.model.reason import Reason, ReasonCode
from exporter.model.replace import replace
from exporter.model.watch import Quarantine
from exporter.parse.kernel_log import RECOVERY_XID
from exporter.parse.xid_catalogue import REBOOT, RESET, exonerates, xid_meaning


def quarantined(matter: Matter) -> Told:
    """The watch, in quarantine where a GPU of the daemon's asks for it."""
    if matter.watch.quarantine is not None:
        return matter.watch, ()
    since = matter.watch.released_at or 0.0
    asking = (each for each in _demands(matter) if each.at > since)
    found = max(asking, key=lambda each: each.at, default=None)
    if found is None:
        return matter.watch, ()
    event = Event(
        at=matter.at,
        event=EventName.DAEMON_QUARANTINED,
        daemon=matter.daemon.name,
        gpu=found.gpu,
        xid=found.xid,
        reason=reason(found),
    )
    return replace(matter.watch, quarantine=found), (event,)


def reason(quarantine: Quarantine) -> Reason:
    """Return what the GPU needs."""
    code = ReasonCode.GPU_NEEDS_RESET if quarantine.action == RESET else ReasonCode.GPU_NEEDS_REBOOT
    return Reason(code, xid=quarantine.xid, gpu=quarantine.gpu)


def _demands(matter: Matter) -> Iterator[Quarantine]:
    """What the driver says outright, and what NVIDIA's catalogue does of Xids that no program can cause."""
    xids = matter.node.xids
    for gpu, demand in xids.demands.items():
        if _serves(matter, gpu):
            yield Quarantine(at=demand.at, xid=RECOVERY_XID, gpu=gpu, action=demand.action)
    for (gpu, number), count in xids.counts.items():
        action = _action(number)
        if action is not None and _serves(matter, gpu):
            yield Quarantine(at=count.last_at, xid=int(number), gpu=gpu, action=action)


def _action(number: str) -> str | None:
    known = xid_meaning(int(number)) if number.isdecimal() else None
    if known is None or not exonerates(int(number)):
        return None
    return known.action if known.action in (RESET, REBOOT) else None


def _serves(matter: Matter, gpu: str) -> bool:
    known = matter.node.gpus.get(gpu)
    if known is None:
        return gpu in matter.daemon.runtime.devices.values()
    return devices.served(matter.daemon, known.reading)
