"""Reads where NVIDIA's programs are, and of which version."""

import os
import re
import shutil
from pathlib import Path

from exporter.clock import Clock
from exporter.config import Config
from exporter.doctor.facts import Programs
from exporter.parse.control_reply import VERSION_FLAG
from exporter.sources.control import ControlClient

_SERVER = "nvidia-cuda-mps-server"
_SAID = re.compile(r"binary version: ([0-9]{1,10})")


def read_programs(config: Config, path: str, clock: Clock) -> Programs:
    """The programs by the PATH of whoever looks. That for the version does not reach a daemon."""
    control = shutil.which(config.constants.control_executable, path=path)
    if control is None:
        return Programs()
    server = shutil.which(_SERVER, path=os.pathsep.join((str(Path(control).parent), path)))
    client = ControlClient(
        "", Path("/"), executable=control, deadline=config.constants.control_deadline, clock=clock, path=path
    )
    reply = client.ask(VERSION_FLAG)
    if reply.exit_code == 0:
        said = _SAID.search(reply.stdout)
        return Programs(control=control, server=server, version=None if said is None else said[1])
    problem = reply.stderr.strip() or ("no answer" if reply.exit_code is None else f"exit code {reply.exit_code}")
    return Programs(control=control, server=server, problem=problem)
