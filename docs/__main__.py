"""Writes the generated files of the documentation."""

from pathlib import Path

from docs.configuration_page import configuration_page
from docs.metrics_page import metrics_page
from docs.status_schema import status_schema

HERE = Path(__file__).parent
WRITTEN = {
    "METRICS.md": metrics_page,
    "configuration.md": configuration_page,
    "status.schema.json": status_schema,
}

if __name__ == "__main__":
    for name, text in WRITTEN.items():
        (HERE / name).write_text(text())
