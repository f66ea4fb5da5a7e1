"""What is the matter with the node, and what to do about it: a file finds the troubles of one kind."""

from exporter.page.troubles.trouble import Trouble
from exporter.page.troubles.troubles import troubles

__all__ = ["Trouble", "troubles"]
