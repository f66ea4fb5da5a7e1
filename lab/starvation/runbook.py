"""The commands of the runbook, executed as an operator pastes them."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from lab.gpu.program import SOURCE

RUNBOOK = SOURCE / "alerts" / "runbooks" / "CudaMpsClientStarved.md"
DIRECTORY = "/tmp/nvidia-mps"
"""The pipe directory in the runbook, which it asks to replace by the daemon's own."""

PROGRAM = "cuda-mps-exporter"
DEADLINE_SECONDS = 30


def blocks(text: str) -> Iterator[str]:
    """Yield the blocks of commands of a runbook, each with all its lines."""
    for block in re.findall(r"^\n((?: {4,}\S.*\n)+)$", text + "\n", re.MULTILINE):
        yield "\n".join(line.strip() for line in block.splitlines())


def command(part: str) -> str:
    """Return the block of commands with this text; ValueError if not exactly one has it."""
    (found,) = [block for block in blocks(RUNBOOK.read_text()) if part in block]
    return found


def with_program(directory: Path, source: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which the exporter is on the PATH, as after its installation."""
    directory.mkdir(exist_ok=True)
    program = directory / PROGRAM
    program.write_text(
        f'#!/bin/sh\ncd {shlex.quote(str(source))} && exec {shlex.quote(sys.executable)} -m exporter "$@"\n'
    )
    program.chmod(0o755)
    return {**environment, "PATH": os.pathsep.join([str(directory), environment.get("PATH", os.defpath)])}


def run(block: str, environment: Mapping[str, str]) -> Mapping[str, object]:
    """Run commands in a shell, and return them, what they printed, and the exit code; None if they did not end."""
    try:
        done = subprocess.run(
            ["bash", "-c", block], env=environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS
        )
    except subprocess.TimeoutExpired:
        return {"commands": block, "output": "", "exit_code": None}
    return {"commands": block, "output": done.stdout + done.stderr, "exit_code": done.returncode}
