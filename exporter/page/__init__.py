"""The page at `/`: the node at a glance, for a person.

A file makes the values of each section from a sight of the node; `page.py` has the templates show them. It is imported
when somebody asks for the page, as the templates take some MiB.
"""

from exporter.page.sight import Sight

__all__ = ["Sight"]
