"""Faults as they are found, fill with evidence, and end."""

from exporter.model.event import Event
from exporter.model.node import Node

Told = tuple[Node, tuple[Event, ...]]


def follow(before: Node, node: Node, *, force: bool = False) -> Told:
    """Take what became known between two nodes to the incidents; with `force`, wait for nothing more."""
    return node, ()
