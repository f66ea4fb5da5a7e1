"""Choice of the node for a script."""

import argparse
import contextlib
from collections.abc import Iterator

from benchmarks.real_node import RealNode
from benchmarks.standin_node import StandInNode


@contextlib.contextmanager
def real_or_standin(options: argparse.Namespace, *, launching: bool = False) -> Iterator[RealNode | StandInNode]:
    """Yield the node of the arguments, with its clients connected. Those of a real node always launch kernels."""
    made: RealNode | StandInNode
    if options.real:
        made = RealNode(options.clients)
    else:
        made = StandInNode(options.gpus, options.clients, launching=launching)
    with made as node:
        yield node
