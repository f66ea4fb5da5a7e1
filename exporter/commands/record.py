"""`record`: write observations to a file."""

import contextlib
import secrets
import sys
from argparse import Namespace

from exporter import log
from exporter.app import Assembly
from exporter.clock import Clock, SystemClock
from exporter.collectors.nvml.collector import Nvml
from exporter.collectors.thread import Inbox, collect_each
from exporter.config.checks import checked, duration
from exporter.config.settings import Config
from exporter.errors import ConfigError
from exporter.loop import Loop
from exporter.model.node import CollectorName
from exporter.model.observation import GpuReading
from exporter.recording import Header, Mask, RecordedGpu, header_of, open_recording, write_header, write_observation
from exporter.service import handle_signals


def record(arguments: Namespace, config: Config) -> int:
    """Write observations until interrupted, or for the given duration."""
    log.configure(config.log_level, config.log_format, sys.stderr)
    clock = SystemClock()
    inbox: Inbox = Inbox()
    seconds = None if arguments.duration is None else checked("--for", duration, arguments.duration)
    if seconds == 0:
        raise ConfigError("--for: invalid value '0': expected a duration above 0")
    end = None if seconds is None else clock.monotonic() + seconds
    header = _header(config, clock)
    mask = Mask(secrets.token_bytes()) if arguments.mask else None
    with (
        open_recording(arguments.file, "x") as file,
        handle_signals(lambda: inbox.put(())) as signals,
        contextlib.closing(Assembly(config, clock, inbox)) as assembly,
    ):
        write_header(file, header, mask)
        loop = Loop(
            header.node(),
            assembly.pool(),
            inbox=inbox,
            clock=clock,
            intervals=config.constants.intervals,
            publish=lambda _node: file.flush(),
            record=lambda observation: write_observation(file, observation, mask),
        )
        loop.run(lambda: not signals.stop and (end is None or clock.monotonic() < end))
    return 0


def _header(config: Config, clock: Clock) -> Header:
    """Return the header, with the GPUs and the driver if NVML returns them before the deadline."""
    with contextlib.closing(Nvml(clock)) as nvml:
        readings = collect_each(config.constants.collect_deadline, {CollectorName.NVML: nvml.collect})
        gpus = tuple(
            RecordedGpu(index=each.index, uuid=each.gpu, name=each.name or "", pci_bus_id=each.pci_bus_id)
            for each in readings[CollectorName.NVML].observations
            if isinstance(each, GpuReading) and each.index is not None
        )
        return header_of(config, gpus, nvml.driver_version() if gpus else None)
