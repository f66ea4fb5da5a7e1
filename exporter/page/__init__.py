"""The page at `/`: the node at a glance, for a person.

A file makes the values of each section from a sight of the node; `page.py` has the templates show them.
"""

from exporter.page.page import Page
from exporter.page.sight import Sight

__all__ = ["Page", "Sight"]
