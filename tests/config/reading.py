"""Reads configurations as the program does, but for the file that this machine may have in /etc."""

from pathlib import Path

from exporter.cli import parse_arguments
from exporter.config.load import Document, build_config, parse_document
from exporter.config.settings import Config

PLACE = Path("config.toml")


def config(*arguments: str, **environment: str) -> Config:
    """What these arguments and variables make."""
    return build_config(parse_arguments(arguments), environment, default_file=None)


def document(text: str) -> Document:
    """What a file with this text says."""
    return parse_document(PLACE, text)


def written(directory: Path, text: str, name: str = "config.toml") -> str:
    """The path of a file with this text."""
    path = directory / name
    path.write_text(text)
    return str(path)
