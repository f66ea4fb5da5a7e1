"""The web config file, in the format of Prometheus' exporter-toolkit (docs/web-configuration.md), and its reload.

Supported are certificate, key, client authority with allowed names, minimum version and users. Any other setting is an
error: if it were ignored, a protection that the operator expects would be absent.
"""

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import structlog

from exporter.errors import ConfigError
from exporter.web.auth import BasicAuth, bcrypt_check
from exporter.web.config_section import ConfigFiles, FileVersion, Section, file_version, read_document
from exporter.web.tls import Tls, read_tls

_SECTIONS = ("tls_server_config", "basic_auth_users")
_BCRYPT = re.compile(r"\$2[aby]\$(?:0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}")
"""22 characters hold a salt of 128 bits, so the last one has four possible values."""

OnReload = Callable[[str | None], None]
"""Called after each reload of the file: with None if it succeeded, else with the problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """The protection of a connection."""

    tls: Tls | None = None
    users: BasicAuth | None = None

    @property
    def authenticates_by_tls(self) -> bool:
        """Whether each client has shown a verified certificate."""
        return self.tls is not None and self.tls.authenticates

    def missing_from(self, other: "Protection") -> str | None:
        """Return a protection that this one has and the other lacks."""
        if self.tls is not None and other.tls is None:
            return "TLS"
        if self.users is not None and other.users is None:
            return "basic authentication"
        if self.authenticates_by_tls and not other.authenticates_by_tls:
            return "client certificates"
        return None


class WebSecurity:
    """A web config file that is reloaded when it changes. Safe to use from several threads."""

    def __init__(self, path: Path, on_reload: OnReload) -> None:
        """Use `load`."""
        self._path = path
        self._on_reload = on_reload
        self._reloading = threading.Lock()
        self._problem: str | None = None
        self._protection, self._versions = _read(path)

    @classmethod
    def load(cls, path: Path, on_reload: OnReload = lambda _problem: None) -> Self:
        """Read the file; ConfigError if it cannot be used."""
        return cls(path, on_reload)

    def current(self) -> Protection:
        """Return the protection in force, after a reload if the files have changed.

        If they cannot be used now, the previous protection stays in force, and each call tries again: a certificate is
        often replaced a moment before its key. One caller at a time reads the files; the others do not wait.
        """
        if self._reloading.acquire(blocking=False):
            try:
                if self._problem is not None or self._has_changed():
                    self._reload()
            finally:
                self._reloading.release()
        return self._protection

    def _has_changed(self) -> bool:
        return any(file_version(path) != version for path, version in self._versions.items())

    def _reload(self) -> None:
        try:
            protection, self._versions = _read(self._path)
            removed = self._protection.missing_from(protection)
            if removed is not None:
                raise ConfigError(
                    f"--web.config.file: {self._path}: no longer requires {removed}; restart the exporter to remove it"
                    " (a file that is being written looks the same)"
                )
        except ConfigError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                structlog.get_logger().error(
                    "web_config_reload_failed", problem=str(error), now="the previous configuration stays in force"
                )
                self._on_reload(str(error))
            return
        self._protection, self._problem = protection, None
        structlog.get_logger().info("web_config_reloaded", file=str(self._path))
        self._on_reload(None)


def _read(path: Path) -> tuple[Protection, Mapping[Path, FileVersion]]:
    files = ConfigFiles(path)
    document = read_document(files)
    document.refuse_others(_SECTIONS)
    users = _users(document.section("basic_auth_users"))
    protection = Protection(
        tls=read_tls(document.section("tls_server_config")),
        users=BasicAuth(users, bcrypt_check()) if users else None,
    )
    return protection, files.versions


def _users(section: Section) -> Mapping[str, str]:
    users = {name: section.text(name) or "" for name in section.keys}
    for name, hashed in users.items():
        if ":" in name:
            raise section.error(name, "invalid user name: basic authentication does not allow a colon")
        if _BCRYPT.fullmatch(hashed) is None:
            raise section.error(name, "not a bcrypt hash ($2a$, $2b$ or $2y$); create one with: htpasswd -nBC 10 NAME")
    return users
