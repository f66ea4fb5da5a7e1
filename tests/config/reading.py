"""Reads configurations as the program does, without a file in /etc of this machine."""

from pathlib import Path
from typing import Any

from exporter.cli import parse_arguments
from exporter.config.load import build_config, parse_document
from exporter.config.settings import Config

PLACE = Path("config.toml")


def config(*arguments: str, **environment: str) -> Config:
    return build_config(parse_arguments(arguments), environment, default_file=None)


def document(text: str) -> dict[str, Any]:
    return parse_document(PLACE, text)


def written(directory: Path, text: str, name: str = "config.toml") -> str:
    path = directory / name
    path.write_text(text)
    return str(path)
