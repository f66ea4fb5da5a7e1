"""Records of the kernel log (/dev/kmsg): Xids and their catalogue, addresses of GPUs, and out-of-memory kills.

Wordings of NVIDIA's driver: `krcReportXid_IMPL` in kernel_rc.c of open-gpu-kernel-modules (R595), measured on R580, and
as reported for older drivers. A process chooses its own name. The name is the last field that is read: it ends at the
first comma and space, so that a process can truncate its own name, but change nothing else.
"""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from exporter.model.incident import AccessKind, FailedAccess
from exporter.parse.printable import printable

# -- NVIDIA's catalogue of Xids ----------------------------------------------------------------------------------------
# To 172: for Ampere and newer (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, R580, column "Immediate
# Action"); 57 and 58: as gpud (leptonai) lists them for R555. The mnemonics are those of nverror.h without prefixes.
# From 173 on, that catalogue has none, and no action: 173 to 176 from nverror.h (open-gpu-kernel-modules 595.45.04),
# 177 and 179 from newer events (ras_events.c, bus_events.c), 185 from the notes on GPU Operational Events (R620).
# No source has 178 and 180 to 184. Only the numbers that a node which runs CUDA may have.


class XidClass(StrEnum):
    """The usual cause of an Xid."""

    APPLICATION = "application"
    CONSEQUENCE = "consequence"
    HARDWARE = "hardware"
    LINK = "link"
    DRIVER = "driver"
    NOTICE = "notice"


class XidMeaning(NamedTuple):
    """One entry. `action` is the immediate action as the catalogue names it; None if it has none."""

    mnemonic: str
    meaning: str
    action: str | None
    kind: XidClass


def exonerates(number: int) -> bool:
    """Return whether a known Xid explains a fault by hardware, a link or the driver, so that no process is suspect."""
    known = XIDS.get(number)
    system = known is not None and known.kind in (_HARDWARE, _LINK, _DRIVER)
    return system and number not in _MAYBE_BY_PROGRAM | _HARMLESS


_APP, _AFTER, _HARDWARE = XidClass.APPLICATION, XidClass.CONSEQUENCE, XidClass.HARDWARE
_LINK, _DRIVER, _NOTICE = XidClass.LINK, XidClass.DRIVER, XidClass.NOTICE

_MAYBE_BY_PROGRAM = frozenset({8, 32, 37, 38, 44, 66, 67, 80, 109, 141, 159, 170})
"""A program may also cause these: NVIDIA advises to restart or check it (8, 32, 80), leaves the GPU as it is (37, 38,
44, 66, 67, 141: IGNORE), ignores them in its Kubernetes device plugin (109, an endless kernel), or does not state the
cause (159, 170)."""

_HARMLESS = frozenset({54, 78, 92, 121, 155, 176})
"""These end no process: lower clocks (54), corrected errors (92, 121, 176), a link in sleep mode (155), a vGPU (78)."""

RESET, REBOOT = "RESET_GPU", "RESTART_BM"  # Actions on the GPU or the machine. No action on a program replaces them.

_GROUPS: tuple[tuple[str, str, str | None, XidClass, Iterable[int]], ...] = (
    ("CE_ERROR", "copy engine error", "RESTART_APP", _APP, (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136))),
    ("NVDEC_ERROR", "video decoder exception", "RESTART_APP", _APP, (68, 83, 84, 88, 89, 96, 97, 98)),
    ("NVJPG_ERROR", "image decoder exception", "RESTART_APP", _APP, (82, *range(99, 106))),
    ("OFA_ERROR", "optical flow exception", "RESTART_APP", _APP, (86, 139)),
    ("FECS_ERR", "error of the driver's firmware", "IGNORE", _DRIVER, (37, 38)),
    ("FECS_ERR_VIOLATION", "illegal register access", "IGNORE", _DRIVER, (66, 67)),
    ("PBDMA_ERROR", "corrupted push buffer", "RESTART_APP", _LINK, (32, 80)),
    ("FB_MEMORY_ERROR", "unstable link to the memory", None, _HARDWARE, (57, 58)),
    ("SMBPBI_TEST_MESSAGE", "test message", "IGNORE", _NOTICE, (106, 107)),
    ("NVLINK_PRIV_ERR", "illegal access to another GPU's memory", "IGNORE", _APP, (108, 137)),
    ("PSHC_CHANGED", "state of power smoothing", None, _NOTICE, range(162, 166)),
    ("NVLINK_SECURE_ERROR", "error of encrypted NVLink", None, _LINK, (166, 170)),
)

XIDS: Mapping[int, XidMeaning] = {
    **{number: XidMeaning(name, text, do, kind) for name, text, do, kind, all_ in _GROUPS for number in all_},
    8: XidMeaning("FIFO_ERROR_IDLE_TIMEOUT", "GPU stopped processing", "RESTART_APP", _DRIVER),
    11: XidMeaning("GR_ERROR_MISSING_HW", "corrupted push buffer", "RESTART_APP", _APP),
    13: XidMeaning("GR_EXCEPTION", "exception in a kernel", "RESTART_APP", _APP),
    14: XidMeaning("FAKE_ERROR", "error that a program injected", "IGNORE", _NOTICE),
    25: XidMeaning("GR_ILLEGAL_NOTIFY", "corrupted push buffer", "RESTART_APP", _APP),
    31: XidMeaning("FIFO_ERROR_MMU_ERR_FLT", "illegal address", "RESTART_APP", _APP),
    43: XidMeaning("RESETCHANNEL_VERIF_ERROR", "channel reset after an application's error", "IGNORE", _AFTER),
    44: XidMeaning("GR_FAULT_DURING_CTXSW", "fault during a context switch", "IGNORE", _DRIVER),
    45: XidMeaning("PREEMPTIVE_REMOVAL", "channel removed after an earlier error", "WORKFLOW_XID_45", _AFTER),
    46: XidMeaning("GPU_TIMEOUT_ERROR", "GPU stopped processing", "RESET_GPU", _HARDWARE),
    48: XidMeaning("GPU_ECC_DBE", "uncorrectable memory error", "WORKFLOW_XID_48", _HARDWARE),
    54: XidMeaning("SILENT_RUNNING_PWR_REDUCED_CLOCKING", "power cable missing", "CHECK_MECHANICALS", _HARDWARE),
    60: XidMeaning("SEC2_ERROR", "exception of the security processor", "RESTART_APP", _APP),
    62: XidMeaning("PMU_HALT_ERROR", "power management firmware halted", "RESET_GPU", _HARDWARE),
    63: XidMeaning("DRAM_RETIREMENT_EVENT", "memory row remapped or page retired", "IGNORE", _HARDWARE),
    64: XidMeaning("DRAM_RETIREMENT_FAILURE", "memory row could not be remapped", "RESET_GPU", _HARDWARE),
    69: XidMeaning("GR_CLASS_ERROR", "graphics engine class error", "RESTART_APP", _APP),
    74: XidMeaning("NVLINK_ERROR", "NVLink error", "WORKFLOW_NVLINK_ERR", _LINK),
    78: XidMeaning("VGPU_START_ERROR", "vGPU could not be started", "UPDATE_SWFW", _DRIVER),
    79: XidMeaning("GPU_HAS_FALLEN_OFF_THE_BUS", "GPU fell off the bus", "RESTART_BM", _HARDWARE),
    92: XidMeaning("EXCESSIVE_SBE_INTERRUPTS", "many corrected memory errors", "IGNORE", _HARDWARE),
    93: XidMeaning("INFOROM_ERASE_LIMIT_EXCEEDED", "limit of writes to the board's flash", "IGNORE", _NOTICE),
    94: XidMeaning("CONTAINED_ERROR", "memory error contained to its application", "RESTART_APP", _HARDWARE),
    95: XidMeaning("UNCONTAINED_ERROR", "uncontained memory error", "RESET_GPU", _HARDWARE),
    109: XidMeaning("CTXSW_TIMEOUT_ERROR", "context switch timed out", "RESET_GPU", _HARDWARE),
    110: XidMeaning("SEC_FAULT_ERROR", "security fault", "RESET_GPU", _HARDWARE),
    119: XidMeaning("GSP_RPC_TIMEOUT", "GPU system processor did not answer", "RESET_GPU", _DRIVER),
    120: XidMeaning("GSP_ERROR", "GPU system processor failed", "RESET_GPU", _DRIVER),
    121: XidMeaning("C2C_ERROR", "chip-to-chip link error", "IGNORE", _LINK),
    136: XidMeaning("ALI_TRAINING_FAIL", "NVLink training failed", "RESET_GPU", _LINK),
    140: XidMeaning("UNRECOVERABLE_ECC_ERROR_ESCAPE", "unrecovered memory error", "RESET_GPU", _HARDWARE),
    141: XidMeaning("FAST_PATH_ERROR", "error of CUDA's fast path", "IGNORE", _DRIVER),
    142: XidMeaning("NVENC3_ERROR", "video encoder exception", "CONTACT_SUPPORT", _APP),
    143: XidMeaning("GPU_INIT_ERROR", "GPU could not be initialised", "RESET_GPU", _HARDWARE),
    144: XidMeaning("NVLINK_SAW_ERROR", "NVLink error (SAW)", "WORKFLOW_NVLINK5_ERR", _LINK),
    145: XidMeaning("NVLINK_RLW_ERROR", "NVLink error (RLW)", "WORKFLOW_NVLINK5_ERR", _LINK),
    146: XidMeaning("NVLINK_TLW_ERROR", "NVLink error (TLW)", "WORKFLOW_NVLINK5_ERR", _LINK),
    147: XidMeaning("NVLINK_TREX_ERROR", "NVLink error (TREX)", "WORKFLOW_NVLINK5_ERR", _LINK),
    148: XidMeaning("NVLINK_NVLPW_CTRL_ERROR", "NVLink error (NVLPW)", "WORKFLOW_NVLINK5_ERR", _LINK),
    149: XidMeaning("NVLINK_NETIR_ERROR", "NVLink error (NETIR)", "WORKFLOW_NVLINK5_ERR", _LINK),
    150: XidMeaning("NVLINK_MSE_ERROR", "NVLink error (MSE)", "WORKFLOW_NVLINK5_ERR", _LINK),
    151: XidMeaning("KEY_ROTATION_ERROR", "encryption keys could not be changed", "RESTART_VM", _DRIVER),
    154: XidMeaning("GPU_RECOVERY_ACTION_CHANGED", "the text names the required recovery action", "XID_154", _NOTICE),
    155: XidMeaning("NVLINK_SW_DEFINED_ERROR", "NVLink error", "RESET_GPU", _LINK),
    156: XidMeaning("RESOURCE_RETIREMENT_EVENT", "part of the GPU retired", "RESET_GPU", _HARDWARE),
    157: XidMeaning("RESOURCE_RETIREMENT_FAILURE", "part of the GPU could not be retired", "IGNORE", _HARDWARE),
    158: XidMeaning("GPU_FATAL_TIMEOUT", "fatal timeout", "RESET_GPU", _HARDWARE),
    159: XidMeaning("CHI_NON_DATA_ERROR", "chip-to-chip access failed", "CHECK_UVM", _LINK),
    160: XidMeaning("CHANNEL_RETIREMENT_EVENT", "memory channel retired", "IGNORE", _HARDWARE),
    161: XidMeaning("CHANNEL_RETIREMENT_FAILURE", "memory channel could not be retired", "IGNORE", _HARDWARE),
    167: XidMeaning("PCIE_FATAL_TIMEOUT", "fatal timeout of PCIe", None, _LINK),
    168: XidMeaning("REDUCED_GPU_MEMORY_CAPACITY", "errors in the GPU's protected memory", None, _HARDWARE),
    169: XidMeaning("SEC2_HALT_ERROR", "security processor halted", None, _HARDWARE),
    171: XidMeaning("UNCORRECTABLE_DRAM_ERROR", "the memory error of the Xid 48 beside it is in DRAM", None, _HARDWARE),
    172: XidMeaning("UNCORRECTABLE_SRAM_ERROR", "the memory error of the Xid 48 beside it is in SRAM", None, _HARDWARE),
    173: XidMeaning("C2C_FATAL_LINK_FAILURE", "chip-to-chip link failed", None, _LINK),
    174: XidMeaning("RESETCHANNEL_KILL_PROCESS_SILENT", "channel reset, which ends its process", None, _AFTER),
    175: XidMeaning("MEMORY_SUBSYSTEM_ERROR", "timeout of the memory subsystem", None, _HARDWARE),
    176: XidMeaning("PCIE_CORRECTABLE_ERROR_FAULT", "many corrected PCIe errors", None, _LINK),
    177: XidMeaning("BANK_REMAPPING_EVENT", "memory bank to be remapped", None, _HARDWARE),
    179: XidMeaning("GPU_CONTAINMENT_ERROR", "GPU isolated after an error of its chip-to-chip link", None, _HARDWARE),
    185: XidMeaning("SPARING_EVENT", "spare part of the GPU put to use", None, _HARDWARE),
}


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
_CORE_DUMP = re.compile(
    r".*(?:Graphics SM Warp Exception on \([^)]{0,60}\): MMU Fault"
    rf"|Graphics Exception: ESR 0x{_HEX}{{1,8}}=0x(?:{_HEX}{{0,4}}00)?17 .*"
    r"|MMU Fault: ENGINE [A-Z0-9_ ]{1,60} UNRECOGNIZED_CLIENT faulted @ 0x[0-9A-Fa-f_]{9,17}\."
    r"(?: Fault is of type UNRECOGNIZED_FAULT.*)?)"
)
_RECOVERY = re.compile(r"GPU recovery action changed from 0x[0-9a-f]{1,8} \([^)]{0,40}\) to 0x([0-9a-f]{1,8}) \(.*")
_OOM_KILL = re.compile(
    r"(?:Out of memory(?: \(oom_kill_allocating_task\))?|Memory cgroup out of memory): Killed process ([0-9]{1,10}) \("
)
_RECORD = re.compile(r"([0-9]{1,10}),[0-9]{1,20},[0-9]{1,20},[^;\n]{0,200};([^\n]*)")

EXCEPTION = 13  # A kernel failed.
ILLEGAL_ADDRESS = 31  # A memory access failed. Its text has the address.
RECOVERY_XID = 154  # its text names the recovery action
LOST_GPU_XID = 79  # the GPU has fallen off the bus


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


class Xid(NamedTuple):
    """An error of the driver, by its number in NVIDIA's catalogue. The process, if any, is not always the cause."""

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


def is_of_core_dump(text: str) -> bool:
    """Return whether the text of an Xid is that of an illegal access while any client has GPU core dumps on.

    Xid 13 reports the access, of code 0x17. The later Xid 31 has an uninvolved client, and nobody's address (R580).
    """
    return _CORE_DUMP.fullmatch(text) is not None


def parse_recovery_action(text: str) -> str | None:
    """Return the action, as the catalogue names it, that the text of an Xid 154 requires at once; None if unknown.

    The numbers are NVML's (nvmlDeviceGpuRecoveryAction_t); their names differ between drivers. A GPU that must be
    drained (3, 4) serves until then. An empty action: the GPU needs none (0).
    """
    found = _RECOVERY.fullmatch(text)
    return None if found is None else {0: "", 1: RESET, 2: REBOOT}.get(int(found[1], 16))


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
