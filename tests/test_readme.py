"""README.md is short, and lists all commands."""

import re
from pathlib import Path

from exporter.cli import COMMANDS

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_lists_all_commands() -> None:
    section = README.partition("\n## Commands\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    assert set(re.findall(r"`([a-z]+)", " ".join(rows))) == set(COMMANDS)


def test_is_short() -> None:
    assert len([word for word in README.split() if any(map(str.isalnum, word))]) <= 910
