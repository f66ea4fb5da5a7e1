"""`once`: the metrics of the running service, for node_exporter's textfile collector."""

import contextlib
import os
import sys
import tempfile
from argparse import Namespace
from pathlib import Path

from exporter.config.settings import Config
from exporter.errors import ExporterError, ServiceError
from exporter.status_client import SERVICE_SECONDS, parse_answer, query_service

MODE = 0o644


def once(arguments: Namespace, config: Config) -> int:
    """Write the metrics to stdout (also for `-`), or replace a regular file by them.

    Without a service, the file remains as it is. A link is refused, because another user may have made it.
    """
    answer = query_service(config.runtime_directory, "metrics", SERVICE_SECONDS)
    if answer is None:
        raise ServiceError(f"no service answers in {config.runtime_directory}; is it running?")
    text = parse_answer(lambda: str(answer["metrics"]))
    if arguments.output in (None, "-"):
        sys.stdout.write(text)
        return 0
    try:
        path = Path(arguments.output)
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise ExporterError(f"{path} is not a regular file; name a file, or - for the standard output")
        _replace_file(path, text)
    except OSError as error:
        raise ExporterError(f"{arguments.output} cannot be written: {error.strerror or error}") from error
    return 0


def _replace_file(path: Path, text: str) -> None:
    """Write a temporary file in the same directory, and rename it, so that no reader finds half of it."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), MODE)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
