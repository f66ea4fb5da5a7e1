"""The exporter's errors, by their cause. The exit code of ConfigError is 2, that of the others 1."""

from errno import EDQUOT, EFBIG, ENOSPC

FULL = (EDQUOT, EFBIG, ENOSPC)
"""Errors of a write to a full disk."""


class ExporterError(Exception):
    """An error for the command line. Its message says what is wrong, where, and what to do."""


class ConfigError(ExporterError):
    """A flag, variable or setting that is invalid. The message names it."""


class ListenError(ExporterError):
    """An address that cannot be listened on. A later attempt may succeed."""


class HistoryError(ExporterError):
    """A history of incidents and events that cannot be read. The message names its file."""


class RecordingError(ExporterError):
    """A recording that cannot be read or written. The message names file and line."""


class ServiceError(ExporterError):
    """The running service did not do what was requested. The message says why."""
