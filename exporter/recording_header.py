"""The header of a recording, from the configuration and NVML."""

import contextlib

from exporter.clock import Clock
from exporter.collectors.nvml.collector import Nvml
from exporter.collectors.thread import collect_each
from exporter.config.settings import Config
from exporter.model.observation import GpuReading
from exporter.recording import Header, RecordedDaemon, RecordedGpu
from exporter.state.gpus import NVML


def header_of(config: Config, gpus: tuple[RecordedGpu, ...] = (), driver: str | None = None) -> Header:
    """The header for what the configuration names."""
    daemons = tuple(
        RecordedDaemon(
            name=daemon.name,
            pipe_directory=str(daemon.pipe_directory),
            log_directory=str(daemon.log_directory),
            expected=True,
            unit=daemon.unit,
            owner=daemon.owner,
        )
        for daemon in config.daemons
    )
    return Header(daemons=daemons, gpus=gpus, facts={} if driver is None else {"driver": driver})


def header_with_gpus(config: Config, clock: Clock) -> Header:
    """The same, with the GPUs and the driver, as far as NVML may be asked and tells of them in time."""
    with contextlib.closing(Nvml(clock)) as nvml:
        reading = collect_each(config.constants.collect_deadline, {NVML: nvml.collect})[NVML]
        readings = [seen for seen in reading.observations if isinstance(seen, GpuReading) and seen.index is not None]
        gpus = tuple(
            RecordedGpu(index=each.index or 0, uuid=each.gpu, name=each.name or "", pci_bus_id=each.pci_bus_id)
            for each in readings
        )
        return header_of(config, gpus, nvml.driver_version() if readings else None)
