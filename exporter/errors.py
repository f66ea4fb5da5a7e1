"""The exporter's errors, each for the person who must act on it.

ExporterError
├── ConfigError       a flag or setting is wrong: exit code 2
├── ListenError       the address to serve on cannot be had now: exit code 1
├── HistoryError      the history of incidents cannot be read: exit code 1
├── RecordingError    a recording cannot be read or written: exit code 1
└── ServiceError      the running service refuses, or does not answer: exit code 1
"""

from errno import EDQUOT, EFBIG, ENOSPC

FULL = (EDQUOT, EFBIG, ENOSPC)
"""What a write alone fails with."""


class ExporterError(Exception):
    """Something that the person at the command line must know: what, where, and what to do."""


class ConfigError(ExporterError):
    """A flag, variable or setting that cannot be used; the message names it."""


class ListenError(ExporterError):
    """An address that cannot be listened on; another attempt may succeed."""


class HistoryError(ExporterError):
    """A history of incidents and events that cannot be read; the message names its file."""


class RecordingError(ExporterError):
    """A recording that cannot be read or written; the message names file and line."""


class ServiceError(ExporterError):
    """The running service did not do as it was asked; the message says why."""
