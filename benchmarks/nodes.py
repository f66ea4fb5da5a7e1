"""Which node a script is to run on."""

import argparse
import contextlib
from collections.abc import Iterator

from benchmarks.real_node import RealNode
from benchmarks.standin_node import StandInNode


@contextlib.contextmanager
def real_or_standin(told: argparse.Namespace) -> Iterator[RealNode | StandInNode]:
    """The node that the arguments ask for, with its clients connected."""
    made = RealNode(told.clients) if told.real else StandInNode(told.gpus, told.clients)
    with made as node:
        yield node
