"""The monitored node, and the choice of it for a script."""

import argparse
import contextlib
from collections.abc import Iterator

from benchmarks.real_node import RealNode
from benchmarks.standin_node import StandInNode

Node = RealNode | StandInNode
"""GPUs, an MPS daemon and its clients."""


@contextlib.contextmanager
def real_or_standin(options: argparse.Namespace, *, launching: bool = False) -> Iterator[Node]:
    """Yield the node of the arguments, with its clients connected. Those of a real node always launch kernels."""
    with (
        RealNode(options.clients) if options.real else StandInNode(options.gpus, options.clients, launching=launching)
    ) as node:
        yield node
