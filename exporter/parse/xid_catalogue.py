"""NVIDIA's catalogue of Xids: what a number means, and the immediate action.

From NVIDIA's catalogue for Ampere and newer (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, column
"Immediate Action") and its mnemonics (nverror.h, open-gpu-kernel-modules). Only the numbers that a node which runs CUDA
may have.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class XidClass(StrEnum):
    """The usual cause of an Xid."""

    APPLICATION = "application"
    CONSEQUENCE = "consequence"
    HARDWARE = "hardware"
    LINK = "link"
    DRIVER = "driver"
    NOTICE = "notice"


@dataclass(frozen=True, slots=True)
class XidMeaning:
    """One entry. `action` is the immediate action as the catalogue names it; None if it has none."""

    mnemonic: str
    meaning: str
    action: str | None
    kind: XidClass


def xid_meaning(number: int) -> XidMeaning | None:
    """Return the catalogue's entry for a number."""
    return XIDS.get(number)


def exonerates(number: int) -> bool:
    """Return whether an Xid explains a fault by hardware, a link or the driver, so that no process is suspected.

    A number that is not in the catalogue explains nothing.
    """
    known = XIDS.get(number)
    system = known is not None and known.kind in (_HARDWARE, _LINK, _DRIVER)
    return system and number not in _MAYBE_BY_PROGRAM | _HARMLESS


_APP, _AFTER, _HARDWARE = XidClass.APPLICATION, XidClass.CONSEQUENCE, XidClass.HARDWARE
_LINK, _DRIVER, _NOTICE = XidClass.LINK, XidClass.DRIVER, XidClass.NOTICE

_MAYBE_BY_PROGRAM = frozenset({8, 32, 44, 66, 109})
"""A program may also cause these: NVIDIA advises to restart or check it (8, 32), leaves the GPU as it is (44, 66:
IGNORE), or ignores them in its Kubernetes device plugin (109, an endless kernel)."""

_HARMLESS = frozenset({78, 92, 121, 155})
"""These end no process: corrected errors (92, 121), a link in sleep mode (155), a vGPU (78)."""

RESET, REBOOT = "RESET_GPU", "RESTART_BM"
"""Actions on the GPU or the machine. No action on a program replaces them."""

XIDS: Mapping[int, XidMeaning] = {
    8: XidMeaning("FIFO_ERROR_IDLE_TIMEOUT", "GPU stopped processing", "RESTART_APP", _DRIVER),
    11: XidMeaning("GR_ERROR_MISSING_HW", "corrupted push buffer", "RESTART_APP", _APP),
    13: XidMeaning("GR_EXCEPTION", "exception in a kernel", "RESTART_APP", _APP),
    25: XidMeaning("GR_ILLEGAL_NOTIFY", "corrupted push buffer", "RESTART_APP", _APP),
    31: XidMeaning("FIFO_ERROR_MMU_ERR_FLT", "illegal address", "RESTART_APP", _APP),
    32: XidMeaning("PBDMA_ERROR", "corrupted push buffer", "RESTART_APP", _LINK),
    39: XidMeaning("CE0_ERROR", "copy engine exception", "RESTART_APP", _APP),
    43: XidMeaning("RESETCHANNEL_VERIF_ERROR", "channel reset after an application's error", "IGNORE", _AFTER),
    44: XidMeaning("GR_FAULT_DURING_CTXSW", "fault during a context switch", "IGNORE", _DRIVER),
    45: XidMeaning("PREEMPTIVE_REMOVAL", "channel removed after an earlier error", "WORKFLOW_XID_45", _AFTER),
    46: XidMeaning("GPU_TIMEOUT_ERROR", "GPU stopped processing", "RESET_GPU", _HARDWARE),
    48: XidMeaning("GPU_ECC_DBE", "uncorrectable memory error", "WORKFLOW_XID_48", _HARDWARE),
    62: XidMeaning("PMU_HALT_ERROR", "power management firmware halted", "RESET_GPU", _HARDWARE),
    63: XidMeaning("DRAM_RETIREMENT_EVENT", "memory row remapped or page retired", "IGNORE", _HARDWARE),
    64: XidMeaning("DRAM_RETIREMENT_FAILURE", "memory row could not be remapped", "RESET_GPU", _HARDWARE),
    66: XidMeaning("FECS_ERR_REG_ACCESS_VIOLATION", "illegal register access", "IGNORE", _DRIVER),
    68: XidMeaning("NVDEC0_ERROR", "video decoder exception", "RESTART_APP", _APP),
    69: XidMeaning("GR_CLASS_ERROR", "graphics engine class error", "RESTART_APP", _APP),
    74: XidMeaning("NVLINK_ERROR", "NVLink error", "WORKFLOW_NVLINK_ERR", _LINK),
    78: XidMeaning("VGPU_START_ERROR", "vGPU could not be started", "UPDATE_SWFW", _DRIVER),
    79: XidMeaning("GPU_HAS_FALLEN_OFF_THE_BUS", "GPU fell off the bus", "RESTART_BM", _HARDWARE),
    92: XidMeaning("EXCESSIVE_SBE_INTERRUPTS", "many corrected memory errors", "IGNORE", _HARDWARE),
    94: XidMeaning("CONTAINED_ERROR", "memory error contained to its application", "RESTART_APP", _HARDWARE),
    95: XidMeaning("UNCONTAINED_ERROR", "uncontained memory error", "RESET_GPU", _HARDWARE),
    109: XidMeaning("CTXSW_TIMEOUT_ERROR", "context switch timed out", "RESET_GPU", _HARDWARE),
    110: XidMeaning("SEC_FAULT_ERROR", "security fault", "RESET_GPU", _HARDWARE),
    119: XidMeaning("GSP_RPC_TIMEOUT", "GPU system processor did not answer", "RESET_GPU", _DRIVER),
    120: XidMeaning("GSP_ERROR", "GPU system processor failed", "RESET_GPU", _DRIVER),
    121: XidMeaning("C2C_ERROR", "chip-to-chip link error", "IGNORE", _LINK),
    136: XidMeaning("ALI_TRAINING_FAIL", "NVLink training failed", "RESET_GPU", _LINK),
    137: XidMeaning("NVLINK_PRIV_ERR", "illegal access to another GPU's memory", "IGNORE", _APP),
    140: XidMeaning("UNRECOVERABLE_ECC_ERROR_ESCAPE", "unrecovered memory error", "RESET_GPU", _HARDWARE),
    143: XidMeaning("GPU_INIT_ERROR", "GPU could not be initialised", "RESET_GPU", _HARDWARE),
    144: XidMeaning("NVLINK_SAW_ERROR", "NVLink error (SAW)", "WORKFLOW_NVLINK5_ERR", _LINK),
    145: XidMeaning("NVLINK_RLW_ERROR", "NVLink error (RLW)", "WORKFLOW_NVLINK5_ERR", _LINK),
    146: XidMeaning("NVLINK_TLW_ERROR", "NVLink error (TLW)", "WORKFLOW_NVLINK5_ERR", _LINK),
    147: XidMeaning("NVLINK_TREX_ERROR", "NVLink error (TREX)", "WORKFLOW_NVLINK5_ERR", _LINK),
    148: XidMeaning("NVLINK_NVLPW_CTRL_ERROR", "NVLink error (NVLPW)", "WORKFLOW_NVLINK5_ERR", _LINK),
    149: XidMeaning("NVLINK_NETIR_ERROR", "NVLink error (NETIR)", "WORKFLOW_NVLINK5_ERR", _LINK),
    150: XidMeaning("NVLINK_MSE_ERROR", "NVLink error (MSE)", "WORKFLOW_NVLINK5_ERR", _LINK),
    154: XidMeaning("GPU_RECOVERY_ACTION_CHANGED", "the text names the required recovery action", "XID_154", _NOTICE),
    155: XidMeaning("NVLINK_SW_DEFINED_ERROR", "NVLink error", "RESET_GPU", _LINK),
    156: XidMeaning("RESOURCE_RETIREMENT_EVENT", "part of the GPU retired", "RESET_GPU", _HARDWARE),
    157: XidMeaning("RESOURCE_RETIREMENT_FAILURE", "part of the GPU could not be retired", "IGNORE", _HARDWARE),
    158: XidMeaning("GPU_FATAL_TIMEOUT", "fatal timeout", "RESET_GPU", _HARDWARE),
    160: XidMeaning("CHANNEL_RETIREMENT_EVENT", "memory channel retired", "IGNORE", _HARDWARE),
    161: XidMeaning("CHANNEL_RETIREMENT_FAILURE", "memory channel could not be retired", "IGNORE", _HARDWARE),
    171: XidMeaning("UNCORRECTABLE_DRAM_ERROR", "the memory error of the Xid 48 beside it is in DRAM", None, _HARDWARE),
    172: XidMeaning("UNCORRECTABLE_SRAM_ERROR", "the memory error of the Xid 48 beside it is in SRAM", None, _HARDWARE),
}
