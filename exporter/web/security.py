"""The web config file at work: TLS, passwords and headers, read anew when its files change."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import structlog

from exporter.errors import ConfigError
from exporter.web.authentication import BasicAuth, bcrypt_check
from exporter.web.file import Version, present_version
from exporter.web.tls import Tls
from exporter.web.web_config import read_web_config

Told = Callable[[str | None], None]
"""Hears of each reading of the file after the first: None if it is in force, else what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """What is in force for a connection."""

    tls: Tls | None = None
    users: BasicAuth | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def authenticates_by_tls(self) -> bool:
        """Whether whoever is connected has shown a certificate that was verified."""
        return self.tls is not None and self.tls.authenticates

    def missing_from(self, other: "Protection") -> str | None:
        """What this one has, and the other has not."""
        if self.tls is not None and other.tls is None:
            return "TLS"
        if self.users is not None and other.users is None:
            return "basic authentication"
        if self.authenticates_by_tls and not other.authenticates_by_tls:
            return "client certificates"
        return None


class WebSecurity:
    """A web config file, followed. Safe to use from several threads."""

    def __init__(self, path: Path, told: Told) -> None:
        """Use `load`."""
        self._path = path
        self._told = told
        self._reading = threading.Lock()
        self._problem: str | None = None
        self._files: Mapping[Path, Version] = {}
        self._protection = self._read()

    @classmethod
    def load(cls, path: Path, told: Told = lambda _problem: None) -> Self:
        """Read the file; ConfigError says what is wrong with it."""
        return cls(path, told)

    def current(self) -> Protection:
        """What is in force, after a look at whether the files have changed.

        If they now make no sense, what was in force stays so, and each look tries again: a new certificate comes a
        moment before its key. One caller at a time reads them, and nobody waits for that one.
        """
        if self._reading.acquire(blocking=False):
            try:
                if self._problem is not None or self._has_changed():
                    self._read_again()
            finally:
                self._reading.release()
        return self._protection

    def _read_again(self) -> None:
        try:
            protection = self._read()
            lost = self._protection.missing_from(protection)
            if lost is not None:
                raise ConfigError(
                    f"--web.config.file: {self._path}: no longer asks for {lost}; a restart is needed to go without,"
                    " as a file that is just being written looks the same"
                )
        except ConfigError as error:
            self._failed(str(error))
            return
        self._protection, self._problem = protection, None
        structlog.get_logger().info("web_config_reloaded", file=str(self._path))
        self._told(None)

    def _failed(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            structlog.get_logger().error("web_config_reload_failed", problem=problem, now="what was in force stays so")
            self._told(problem)

    def _has_changed(self) -> bool:
        return any(present_version(path) != version for path, version in self._files.items())

    def _read(self) -> Protection:
        config = read_web_config(self._path)
        protection = Protection(
            tls=None if config.tls is None else Tls(config.tls),
            users=BasicAuth(config.users, bcrypt_check()) if config.users else None,
            headers=config.headers,
        )
        self._files = config.files
        return protection
