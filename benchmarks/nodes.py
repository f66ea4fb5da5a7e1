"""Choice of the node for a script."""

import argparse
import contextlib
from collections.abc import Iterator

from benchmarks.real_node import RealNode
from benchmarks.standin_node import StandInNode


@contextlib.contextmanager
def real_or_standin(options: argparse.Namespace) -> Iterator[RealNode | StandInNode]:
    """Yield the node of the arguments, with its clients connected."""
    made = RealNode(options.clients) if options.real else StandInNode(options.gpus, options.clients)
    with made as node:
        yield node
