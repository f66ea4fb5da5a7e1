"""Write the JSON of the dashboards, and the rules."""

import sys
from pathlib import Path

from dashboards.accounting import ACCOUNTING
from dashboards.board import Board
from dashboards.fleet import FLEET
from dashboards.incident import INCIDENT
from dashboards.node import NODE
from dashboards.parameters import Parameters
from dashboards.recording import text
from dashboards.reliability import RELIABILITY
from dashboards.usage import USAGE

BOARDS = (FLEET, USAGE, RELIABILITY, INCIDENT, NODE, ACCOUNTING)
HERE = Path(__file__).parent
RECORDING = HERE.parent / "alerts" / "cuda-mps.recording.yml"


def path(board: Board) -> Path:
    """Where a dashboard stands."""
    return HERE / f"{board.uid}.json"


def main() -> int:
    """Write them all."""
    for board in BOARDS:
        path(board).write_text(board.text())
    RECORDING.write_text(text(Parameters()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
