"""`doctor`, the preflight: finds the classic mistakes with MPS and with the exporter, and says how to mend each.

Facts are read once, at the rim (`gather.py`, `readers/`), and judged by small pure functions (`checks/`).
"""

from exporter.doctor.gather import Surroundings, gather
from exporter.doctor.object import report_object
from exporter.doctor.registry import examine
from exporter.doctor.text import report_text

__all__ = ["Surroundings", "examine", "gather", "report_object", "report_text"]
