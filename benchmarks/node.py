"""The monitored node: GPUs, an MPS daemon and its clients."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol


class Node(Protocol):
    """A node of stand-ins, or a real one."""

    directory: Path
    """Directory of all files of the node and of the programs that monitor it."""

    clients: Sequence[int]
    """PIDs of connected clients."""

    constants: Mapping[str, Any]
    """Constants of the exporter with which it monitors only this node."""

    @property
    def title(self) -> str:
        """The node's description, for the heading of a table."""
        ...

    def environment(self) -> Mapping[str, str]:
        """Return the environment of a process that uses this node."""
        ...

    def daemon_hangs(self) -> AbstractContextManager[None]:
        """Let the daemon answer no command during the block."""
        ...
