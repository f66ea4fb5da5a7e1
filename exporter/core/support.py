"""Which kinds of reading a GPU and its driver give, so that one that is absent is not taken for a failure, or for 0."""

from collections.abc import Mapping

from exporter.model.gpu import Gpu
from exporter.model.observation import GpuReading

GPM = "gpm"


def supported(before: Gpu | None, reading: GpuReading) -> Mapping[str, bool]:
    """Each kind of reading, and whether it is given; of a GPU that failed, as it was.

    Under MIG, NVML tells nothing of single processes on the whole GPU that could be relied on (nvml.h).
    """
    if reading.problem is not None:
        return {} if before is None else before.supported
    whole = not reading.mig_mode
    given = {
        "memory": reading.memory_used_bytes is not None,
        "utilization": reading.gpu_percent is not None,
        "processes": whole and reading.compute_processes is not None,
        "mps_processes": whole and reading.mps_processes is not None,
        "process_memory": whole and _memory_told(reading),
        "process_utilization": whole and reading.process_utilization is not None,
        "energy": reading.energy_millijoules is not None,
        "power": reading.power_milliwatts is not None,
        "temperature": reading.temperature_celsius is not None,
        "clocks_event_reasons": reading.clocks_event_reasons is not None,
        "ecc": reading.ecc_corrected is not None,
    }
    gpm = _gpm(before, reading)
    return given if gpm is None else {**given, GPM: gpm}


def _memory_told(reading: GpuReading) -> bool:
    processes = reading.compute_processes
    return processes is not None and (not processes or any(each.used_bytes is not None for each in processes))


def _gpm(before: Gpu | None, reading: GpuReading) -> bool | None:
    """GPM measures the time between two readings: None at the first, and what is known if a reading fails.

    If NVML says that there is GPM, readings without values do not refute that.
    """
    if reading.sm_utilization is not None or reading.dram_bandwidth is not None:
        return True
    if reading.mig_mode or reading.gpm_supported is False:
        return False
    if before is None:
        return None
    return before.supported.get(GPM, None if before.reading.problem or reading.gpm_supported else False)
