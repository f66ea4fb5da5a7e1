"""What NVIDIA's driver says in the kernel's log: its Xids, and which GPU is at which address.

Wordings: `krcReportXid_IMPL` in kernel_rc.c of open-gpu-kernel-modules (R595), measured on R580, and as reported of
older drivers. A process' name is what that process chose: it stands behind all that is read of it, and ends at the
first comma and space, so that it can cut itself short, and do nothing else; it is shown with what it has of printable
characters.
"""

import re
from dataclasses import dataclass

from exporter.model.xids import FailedAccess
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
_ACCESS = re.compile(
    rf"MMU Fault: ENGINE [A-Z0-9]{{1,20}} (?:GPC[0-9]{{1,3}} )?GPCCLIENT_([A-Z0-9]{{1,20}})(?:_[0-9]{{1,3}})?"
    rf" faulted @ 0x({_HEX}{{1,8}})_({_HEX}{{8}})\."
)
_RECOVERY = re.compile(r"GPU recovery action changed from 0x[0-9a-f]{1,8} \([^)]{0,40}\) to 0x([0-9a-f]{1,8}) \(.*")
_NEEDS = {1: RESET, 2: REBOOT}
_NOBODY = "<unknown>"

RECOVERY_XID = 154
"""Its text tells what the GPU needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """An error that the driver reports, by its number in NVIDIA's catalogue.

    `pid` and `name` are of a process that had to do with it, where one is told of: not always the culprit.
    """

    number: int
    bus_id: str
    pid: int | None = None
    name: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    text: str = ""


def xid(message: str) -> Xid | None:
    """Read a kernel message; None where it is no Xid."""
    found = _XID.fullmatch(message)
    if found is None:
        return None
    domain, bus, device, gpu_instance, compute_instance, number, pid, name, text = found.groups()
    return Xid(
        number=int(number),
        bus_id=_normal(domain, bus, device),
        pid=_whole(pid),
        name=None if name in (None, _NOBODY) else printable(name),
        gpu_instance=_whole(gpu_instance),
        compute_instance=_whole(compute_instance),
        text=text or "",
    )


def failed_access(text: str) -> FailedAccess | None:
    """What an illegal address is told of in the text of an Xid 31; None where it tells something else."""
    found = _ACCESS.search(text)
    return None if found is None else FailedAccess(unit=found[1], address=int(found[2] + found[3], 16))


def needed(text: str) -> str | None:
    """What the text of an Xid 154 says that the GPU needs at once, in the catalogue's word; None: nothing.

    The numbers are NVML's (nvmlDeviceGpuRecoveryAction_t); the words beside them differ between drivers. A GPU that is
    to be drained (3, 4) serves on until then.
    """
    found = _RECOVERY.fullmatch(text)
    return None if found is None else _NEEDS.get(int(found[1], 16))


def gpu_at(message: str) -> tuple[str, str] | None:
    """The bus id and UUID of a GPU, where this is the message that the driver writes before a GPU's first Xid."""
    found = _GPU.fullmatch(message)
    return None if found is None else (_normal(found[1], found[2], found[3]), found[4])


def bus_id(text: str) -> str | None:
    """A PCI bus id in the one form in which all can be compared: the kernel has no function, NVML a longer domain."""
    found = _BUS_ID.fullmatch(text)
    return None if found is None else _normal(*found.groups())


def _normal(domain: str, bus: str, device: str) -> str:
    return f"{int(domain, 16):04x}:{bus}:{device}".lower()


def _whole(text: str | None) -> int | None:
    return None if text is None else int(text)
