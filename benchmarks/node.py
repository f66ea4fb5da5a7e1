"""The node that is watched: GPUs, an MPS daemon, and its clients."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol


class Node(Protocol):
    """A node, made of stand-ins or a real one."""

    directory: Path
    """What it and the programs that watch it write is below here."""

    clients: Sequence[int]
    """The PIDs of those that are connected."""

    constants: Mapping[str, Any]
    """Constants of the exporter with which it watches this node and nothing else."""

    @property
    def title(self) -> str:
        """What it is, for the heading of a table."""
        ...

    def environment(self) -> Mapping[str, str]:
        """What to set in a process that is to find it."""
        ...

    def daemon_hangs(self) -> AbstractContextManager[None]:
        """For so long, the daemon answers nobody."""
        ...
