"""Records of the kernel log (/dev/kmsg): Xids, addresses of GPUs, and out-of-memory kills.

Wordings of NVIDIA's driver: `krcReportXid_IMPL` in kernel_rc.c of open-gpu-kernel-modules (R595), measured on R580, and
as reported for older drivers. A process chooses its own name. The name is the last field that is read: it ends at the
first comma and space, so that a process can truncate its own name, but change nothing else.
"""

import re
from dataclasses import dataclass

from exporter.model.gpu import AccessKind, FailedAccess
from exporter.parse.printable import printable
from exporter.parse.xid_catalogue import REBOOT, RESET

_HEX = "[0-9A-Fa-f]"
_ADDRESS = rf"({_HEX}{{4,8}}):({_HEX}{{2}}):({_HEX}{{2}})(?:\.[0-7])?"
_BUS_ID = re.compile(rf"(?:PCI:)?{_ADDRESS}")
_XID = re.compile(
    rf"NVRM: Xid \((?:PCI:)?{_ADDRESS}(?: GPU-I:([0-9]{{1,5}})(?: GPU-CI:([0-9]{{1,5}}))?)?\): ([0-9]{{1,5}})"
    r"(?:, pid=(?:([0-9]{1,10})|'[^',]{0,40}'))?(?:, name=(.{0,400}?))?(?:, (.*)|,?)",
    re.DOTALL,
)
_GPU = re.compile(rf"NVRM: GPU at (?:PCI:)?{_ADDRESS}: (GPU-{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}})")
_LOST_GPU = re.compile(
    rf"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?{_ADDRESS}"
    r"(?:: GPU|\\x0a *NVRM: \([^)]{0,40}\) installed in this system)? has(?:\\x0a *NVRM:)? fallen off the bus\b.*"
)
_ACCESS = re.compile(
    r"MMU Fault: ENGINE ([A-Z0-9_]{1,32}) (?:GPC[0-9]{1,3} )?(GPC|HUB)CLIENT_([A-Z0-9_]{1,32}?)(?:_[0-9]{1,3})?"
    rf" faulted @ 0x({_HEX}{{1,8}})_?({_HEX}{{8}})\."
    r"(?: Fault is of type ([A-Z_]{1,40}?)(?: ACCESS_TYPE_(?:VIRT_|PHYS_)?(READ|WRITE|ATOMIC)[A-Z_]{0,20})?\.?$)?"
)
_RECOVERY = re.compile(r"GPU recovery action changed from 0x[0-9a-f]{1,8} \([^)]{0,40}\) to 0x([0-9a-f]{1,8}) \(.*")
_OOM_KILL = re.compile(
    r"(?:Out of memory(?: \(oom_kill_allocating_task\))?|Memory cgroup out of memory): Killed process ([0-9]{1,10}) \("
)
_RECORD = re.compile(r"([0-9]{1,10}),[0-9]{1,20},[0-9]{1,20},[^;\n]{0,200};([^\n]*)")

ILLEGAL_ADDRESS = 31
"""A memory access failed. Its text has the address."""

RECOVERY_XID = 154
"""Its text names the recovery action."""

LOST_GPU_XID = 79
"""The GPU has fallen off the bus."""


def parse_kernel_record(text: str) -> str | None:
    r"""Return the text of `prefix,sequence,microseconds,flags;text` (Linux, Documentation/ABI/testing/dev-kmsg).

    None if the text has another form, or if the kernel did not write the record: another writer gets another facility
    than 0.

    The kernel escapes control characters, backslashes and non-ASCII bytes (`\x0a`), so the first line is all of the
    text. Further lines, which begin with a space, are the record's dictionary.
    """
    found = _RECORD.match(text)
    return None if found is None or int(found[1]) >> 3 != 0 else found[2]


def parse_oom_kill(message: str) -> int | None:
    """Return the PID of the process that the kernel killed because memory ran out; None for other messages.

    Wording: `__oom_kill_process` in mm/oom_kill.c, Linux 5.0 and later. The process chose the name after its PID, so
    nothing after the PID is read.
    """
    found = _OOM_KILL.match(message)
    return None if found is None else int(found[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """An error that the driver reports, by its number in NVIDIA's catalogue.

    `pid` and `name`, if reported, are of a process that was involved. It is not always the cause.
    """

    number: int
    bus_id: str
    pid: int | None = None
    name: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    text: str = ""


def parse_xid(message: str) -> Xid | None:
    """Parse a kernel message; None if it is not an Xid."""
    found = _XID.fullmatch(message)
    if found is None:
        return None
    domain, bus, device, gpu_instance, compute_instance, number, pid, name, text = found.groups()
    return Xid(
        number=int(number),
        bus_id=_normal(domain, bus, device),
        pid=_optional_int(pid),
        name=None if name in (None, "<unknown>") else printable(name),
        gpu_instance=_optional_int(gpu_instance),
        compute_instance=_optional_int(compute_instance),
        text=text or "",
    )


def parse_lost_gpu(message: str) -> str | None:
    """Return the PCI bus id of a GPU that has fallen off the bus, from a message without an Xid; None for others.

    The driver adds it to an Xid 79 (osinit.c, R515 to R595), with "GPU at" in older drivers. Without an Xid, it
    writes three lines in one record if a GPU does not respond to its probe (nv.c).
    """
    found = _LOST_GPU.fullmatch(message)
    return None if found is None else _normal(*found.groups())


def parse_failed_access(text: str) -> FailedAccess | None:
    """Return the illegal access that the text of an Xid 31 reports; None for other texts.

    Wordings: drivers 470 to 610, as reported; measured on R580. A copy engine's accesses come through the hub.
    """
    found = _ACCESS.search(text)
    if found is None:
        return None
    engine, hub, unit, high, low, fault, kind = found.groups()
    unit = f"HUB_{unit}" if hub == "HUB" else unit
    how = None if kind is None else AccessKind(kind.lower())
    return FailedAccess(unit=unit, address=int(high + low, 16), engine=engine, fault=fault, kind=how)


def parse_recovery_action(text: str) -> str | None:
    """Return the action, as the catalogue names it, that the text of an Xid 154 requires at once; None if none.

    The numbers are NVML's (nvmlDeviceGpuRecoveryAction_t); their names differ between drivers. A GPU that must be
    drained (3, 4) serves until then.
    """
    found = _RECOVERY.fullmatch(text)
    return None if found is None else {1: RESET, 2: REBOOT}.get(int(found[1], 16))


def parse_gpu_address(message: str) -> tuple[str, str] | None:
    """Return PCI bus id and UUID of a GPU from the message that the driver writes before a GPU's first Xid."""
    found = _GPU.fullmatch(message)
    return None if found is None else (_normal(found[1], found[2], found[3]), found[4])


def parse_bus_id(text: str) -> str | None:
    """Return a PCI bus id in a comparable form: the kernel omits the function, and NVML has a longer domain."""
    found = _BUS_ID.fullmatch(text)
    return None if found is None else _normal(*found.groups())


def _normal(domain: str, bus: str, device: str) -> str:
    return f"{int(domain, 16):04x}:{bus}:{device}".lower()


def _optional_int(text: str | None) -> int | None:
    return None if text is None else int(text)
