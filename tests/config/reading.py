"""Reads configurations as the program does, without a file in /etc of this machine."""

from pathlib import Path
from typing import Any

from exporter.cli import parse_arguments
from exporter.config.load import build_config, parse_document
from exporter.config.settings import Config

PLACE = Path("config.toml")


def config(*arguments: str, **environment: str) -> Config:
    """Return the configuration of these arguments and variables."""
    return build_config(parse_arguments(arguments), environment, default_file=None)


def document(text: str) -> dict[str, Any]:
    """Return the values of a file with this text."""
    return parse_document(PLACE, text)


def written(directory: Path, text: str, name: str = "config.toml") -> str:
    """Write a file with this text, and return its path."""
    path = directory / name
    path.write_text(text)
    return str(path)
