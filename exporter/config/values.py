"""The values of options: read from text, checked, refused with what would be right. `where` is what a refusal names."""

import re
import socket
from collections.abc import Sequence
from pathlib import Path

from exporter.config.settings import Address, Switch
from exporter.errors import ConfigError

LONGEST = 4096
"""Characters that a text may have; a path has no more either (PATH_MAX)."""

WORDS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

OWN_PAGES = (
    "/status", "/page.js", "/page.css", "/-/healthy", "/healthz", "/-/ready", "/readyz", "/runbooks", "/runbooks/*",
    "/api/v1/incidents", "/api/v1/incidents/*", "/api/v1/events",
)  # fmt: skip
"""The other pages of the exporter. A path that ends in `/*` stands for all that are one step below it."""


def parse_duration(where: str, text: str) -> float:
    """A duration, such as 500ms, 15s or 2m, in seconds."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|)", text)
    if found is None:
        raise ConfigError(f"{where}: {shown(text)} is no duration; write 500ms, 15s or 2m")
    return float(found[1]) * _UNITS[found[2]]


def parse_address(text: str, where: str = "--web.listen-address") -> Address:
    """A host and port, as in 127.0.0.1:10677, [::1]:10677 or :10677 (all addresses)."""
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise ConfigError(f"{where}: {shown(text)} is no address; write HOST:PORT or :PORT")
    if host.startswith("[") and host.endswith("]"):
        address, _, scope = host[1:-1].partition("%")
        if not _is_address(address, socket.AF_INET6) or not (scope.isalnum() or "%" not in host):
            raise ConfigError(f"{where}: {shown(host)} is no IPv6 address; write it as in [::1]:10677")
        return host[1:-1], int(port)
    if ":" in host:
        raise ConfigError(f"{where}: write the IPv6 address in {shown(text)} in brackets: [ADDRESS]:PORT")
    if re.fullmatch(r"[0-9.]+", host) and not _is_address(host, socket.AF_INET):
        raise ConfigError(f"{where}: {shown(host)} is no IPv4 address; write it as in 127.0.0.1:10677")
    if re.fullmatch(r"[\w.-]{0,253}", host) is None:
        raise ConfigError(f"{where}: {shown(host)} is no host name; write HOST:PORT or :PORT")
    return host, int(port)


def overlapping(addresses: Sequence[Address]) -> tuple[Address, Address] | None:
    """Return two addresses of which only one can be listened on; host names other than localhost are not resolved."""
    for number, first in enumerate(addresses):
        for second in addresses[:number]:
            if first[1] == second[1] != 0 and _covers(first[0], second[0]):
                return second, first
    return None


def _covers(first: str, second: str) -> bool:
    """Whether two hosts of the same port name an address in common: no host, and ::, are all of both protocols."""
    hosts = {"127.0.0.1" if host == "localhost" else host for host in (first, second)}
    both_protocols, ipv4 = hosts & {"", "::"}, not any(":" in each for each in hosts)
    return len(hosts) == 1 or bool(both_protocols) or (ipv4 and "0.0.0.0" in hosts)  # noqa: S104 (nothing is bound)


def _is_address(text: str, family: socket.AddressFamily) -> bool:
    """Whether bind() takes it for an address; of IPv4 it takes short ones too, as 127.1."""
    try:
        if family is socket.AF_INET:
            socket.inet_aton(text)
        else:
            socket.inet_pton(family, text)
    except (OSError, ValueError):
        return False
    return True


def written_address(address: Address) -> str:
    """An address as it is written in flags and files."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_integer(where: str, text: str) -> int:
    """A whole number."""
    if re.fullmatch(r"[0-9]{1,9}", text) is None:
        raise ConfigError(f"{where}: {shown(text)} is no whole number")
    return int(text)


def parse_boolean(where: str, text: str) -> bool:
    """Yes or no, in one of the usual words."""
    if text.lower() not in WORDS:
        raise ConfigError(f"{where}: {shown(text)} is neither true nor false")
    return WORDS[text.lower()]


def parse_switch(where: str, text: str) -> Switch:
    """On, off, or auto."""
    if text.lower() == Switch.AUTO:
        return Switch.AUTO
    if text.lower() not in WORDS:
        raise ConfigError(f"{where}: {shown(text)} is none of true, false and auto")
    return Switch.ON if WORDS[text.lower()] else Switch.OFF


def parse_path(where: str, text: str) -> Path:
    """A path; a relative one begins in the working directory."""
    return Path(parse_text(where, text))


def parse_directory(where: str, text: str) -> Path:
    """An absolute path. Two slashes at its beginning are one on Linux, but not to `pathlib`."""
    if not text.startswith("/") or "\0" in text or len(text) > LONGEST:
        raise ConfigError(f"{where}: {shown(text)} is no absolute path")
    return Path("/" + text.lstrip("/"))


def parse_glob(where: str, text: str) -> str:
    """An absolute path, in which * and ? stand for what they stand for in a shell."""
    return str(parse_directory(where, text))


def parse_program(where: str, text: str) -> str:
    """A program: its absolute path, or a name to be looked for in PATH."""
    return str(parse_directory(where, text)) if "/" in text else parse_text(where, text)


def parse_page(where: str, text: str) -> str:
    """The path of a page, that is none of the exporter's others."""
    if re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", text) is None:
        raise ConfigError(f"{where}: {shown(text)} is no path of a page; write it as in /metrics")
    above = text.rpartition("/")[0]
    if text in OWN_PAGES or f"{above}/*" in OWN_PAGES or above == "/-":
        raise ConfigError(f"{where}: {text} is another page already; choose one as /metrics")
    return text


def parse_text(where: str, text: str) -> str:
    """A text that is there, and keeps to its line."""
    if not text or not text.isprintable() or len(text) > LONGEST:
        raise ConfigError(f"{where}: {shown(text)} is empty, too long, or has characters that cannot be printed")
    return text


def shown(value: object) -> str:
    """A value that somebody wrote, as it can stand in a message: on one line, and short."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # more digits, or more brackets, than Python writes
        return "something of that size"
    return text if len(text) <= 200 else f"{text[:200]}…"
