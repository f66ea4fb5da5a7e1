"""Reports of Xids by the kernel log and NVML, and the bus addresses of two GPUs."""

from dataclasses import replace

from exporter.model.observation import GpuEvent, GpuReading, KernelRecord
from tests.builders import AT, GPU, OTHER_GPU, gpu_reading

ADDRESS, OTHER_ADDRESS = "0000:00:06", "0000:00:07"


def kernel(
    number: int = 31,
    *,
    at: float = AT,
    address: str = ADDRESS,
    prefix: int = 4,
    who: str = "pid=600, name=train, ",
) -> KernelRecord:
    """The driver logs an Xid."""
    text = f"NVRM: Xid (PCI:{address}): {number}, {who}channel 0x0000001d"
    return KernelRecord(at=at, record=f"{prefix},360,27859548,c;{text}")


def event(number: int = 31, *, at: float = AT, gpu: str | None = GPU, kind: int = 8) -> GpuEvent:
    """NVML reports an Xid."""
    return GpuEvent(at=at, type=kind, xid=number, gpu=gpu)


def at_address(gpu: str = GPU, address: str | None = f"0000{ADDRESS}.0", index: int = 0) -> GpuReading:
    """NVML reads a GPU with its bus address."""
    return replace(gpu_reading(gpu=gpu, index=index), pci_bus_id=address)


TWO_GPUS = (at_address(), at_address(OTHER_GPU, f"0000{OTHER_ADDRESS}.0", index=1))
