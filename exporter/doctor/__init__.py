"""`doctor`, the preflight: finds the classic mistakes with MPS and with the exporter, and says how to mend each.

Facts are read once, at the rim (`gather.py`, `readers/`), and judged by small pure functions (`checks/`).
"""

from exporter.doctor.finding import report_object as report_object
from exporter.doctor.finding import report_text as report_text
from exporter.doctor.gather import Surroundings as Surroundings
from exporter.doctor.gather import gather as gather
from exporter.doctor.registry import examine as examine

__all__ = ["Surroundings", "examine", "gather", "report_object", "report_text"]
