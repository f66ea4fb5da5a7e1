"""Puts the sources together that a configuration asks for, each in an eye of its own."""

import os
from collections.abc import Callable
from pathlib import Path

from exporter.clock import Clock
from exporter.config import Config
from exporter.core.fold import LOGS
from exporter.core.gpus import NVML
from exporter.model.node import Daemon
from exporter.sources.control import ATTEMPTS as CONTROL_ATTEMPTS
from exporter.sources.control import ControlClient
from exporter.sources.eye import Eye, Inbox
from exporter.sources.logs import DaemonLogs
from exporter.sources.lookout import Asker, Lookout
from exporter.sources.nvml import Nvml
from exporter.sources.processes import Processes
from exporter.sources.reading import Reading

LOG_PERIOD = 0.2
PROCESS_PERIOD = 0.0
PROCESS_WAIT = 0.2
TOLD_EVERY = 1.0


class Assembly:
    """Makes sources, and the eyes in which they look."""

    def __init__(self, config: Config, clock: Clock, inbox: Inbox) -> None:
        self._config = config
        self._clock = clock
        self._inbox = inbox
        self.nvml = Nvml(clock)

    def lookout(self) -> Lookout:
        """All eyes of the service."""
        processes = self.processes(PROCESS_WAIT)
        nvml = self._eye(NVML, self.nvml.look, period=None)
        return Lookout(
            (
                nvml,
                self._eye(LOGS, self.logs().look, period=LOG_PERIOD, told_every=TOLD_EVERY),
                self._eye("process", processes.look, period=PROCESS_PERIOD, told_every=TOLD_EVERY),
            ),
            asker=self.asker,
            processes=processes,
            nvml=nvml,
        )

    def asker(self, daemon: Daemon) -> Asker:
        """What asks a daemon, and its eye."""
        client = self.control_client(daemon)
        eye = self._eye("control", client.look, period=None, deadline=self.ask_deadline, daemon=daemon.name)
        return Asker(client, eye)

    def control_client(self, daemon: Daemon) -> ControlClient:
        """What asks a daemon."""
        return ControlClient(
            daemon.name,
            Path(daemon.pipe_directory),
            executable=self._config.control_executable,
            deadline=self._config.control_deadline,
            clock=self._clock,
            path=os.environ.get("PATH", os.defpath),
        )

    @property
    def ask_deadline(self) -> float:
        """How long one look at a daemon may take: it may be refused a few times, and then not answer."""
        return self._config.control_deadline * (CONTROL_ATTEMPTS + 1)

    def processes(self, wait: float) -> Processes:
        """What watches processes."""
        directories = {daemon.name: daemon.pipe_directory for daemon in self._config.daemons}
        return Processes(directories, proc=self._config.proc, clock=self._clock, wait=wait)

    def logs(self) -> DaemonLogs:
        """What follows the daemons' logs."""
        return DaemonLogs({daemon.name: daemon.log_directory for daemon in self._config.daemons}, self._clock)

    def _eye(
        self,
        name: str,
        look: Callable[[], Reading],
        *,
        period: float | None,
        deadline: float | None = None,
        told_every: float = 0.0,
        daemon: str | None = None,
    ) -> Eye:
        return Eye(
            name,
            look,
            period=period,
            deadline=self._config.look_deadline if deadline is None else deadline,
            inbox=self._inbox,
            clock=self._clock,
            told_every=told_every,
            daemon=daemon,
        )
