"""Kinds of values: how the value of an option or key is parsed, checked and written.

An error names the place of the value, the value, and what is expected.
"""

import re
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from exporter.config.settings import Address
from exporter.errors import ConfigError
from exporter.parse.mps_variables import format_byte_size, parse_byte_size

MAX_TEXT = 4096
"""Maximum length of a text, in characters; a path may not be longer either (PATH_MAX)."""

MAX_ENTRIES = 64
MAX_SECONDS = 1e9
MAX_MEMORY_BYTES = 1 << 50

Toml = str | int | float | bool | list[str]

OWN_PAGES = (
    "/status", "/page.js", "/page.css", "/-/healthy", "/healthz", "/-/ready", "/readyz", "/runbooks", "/runbooks/*",
    "/api/v1/incidents", "/api/v1/incidents/*", "/api/v1/events",
    "/api/v1/commands/status", "/api/v1/commands/incidents",
)  # fmt: skip
"""The other pages of the exporter. `/*` stands for all pages one level below."""

_BOOLEANS = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0"), False)
_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_MISSING = object()


class InvalidError(ValueError):
    """A value that cannot be used. The text names what is expected; `value` is the entry of a list that is wrong."""

    def __init__(self, expected: str, value: object = _MISSING) -> None:
        super().__init__(expected)
        self.value = value


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of value.

    `parse` reads the text of a flag or variable, `check` the value of a file; both raise InvalidError. `write` returns
    what a file would have. A `repeatable` kind is a list: its flag can be repeated, its variable has commas.
    """

    metavar: str
    parse: Callable[[str], Any]
    check: Callable[[Any], Any]
    write: Callable[[Any], Toml] = str
    choices: tuple[str, ...] = ()
    repeatable: bool = False
    boolean: bool = False

    def of_text(self, where: str, text: str) -> Any:
        """Parse a text; ConfigError begins with `where`."""
        return _located(self.parse, where, text)

    def of_toml(self, where: str, raw: object) -> Any:
        """Check a value of a file; ConfigError begins with `where`."""
        return _located(self.check, where, raw)


def _located(read: Callable[[Any], Any], where: str, value: object) -> Any:
    try:
        return read(value)
    except InvalidError as error:
        wrong = value if error.value is _MISSING else error.value
        raise ConfigError(f"{where}: invalid value {shown(wrong)}: {error}") from error


def shown(value: object) -> str:
    """Return a value as a message shows it: on one line, and short."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # more digits, or more brackets, than Python writes
        return "(too large to show)"
    return text if len(text) <= 200 else f"{text[:200]}…"


def text_kind(metavar: str, parse: Callable[[str], Any], write: Callable[[Any], str] = str) -> Kind:
    """Return a kind of values that are strings in files too."""
    return Kind(metavar=metavar, parse=parse, check=lambda raw: parse(_string(raw)), write=write)


def one_of(words: type[StrEnum] | Iterable[str]) -> Kind:
    """Return the kind of one of a few words; the members of an enumeration are values of it."""
    choices = {str(word): word for word in words}

    def parse(text: str) -> str:
        if text not in choices:
            raise InvalidError(f"expected one of {', '.join(choices)}")
        return choices[text]

    return Kind(metavar="|".join(choices), parse=parse, check=lambda raw: parse(_string(raw)), choices=tuple(choices))


def list_of(
    one: Kind,
    *,
    least: int = 1,
    make: Callable[[Iterable[Any]], Any] = tuple,
    distinct: Callable[[Any], object] | None = lambda value: value,
) -> Kind:
    """Return the kind of a list, made by `make`. Entries for which `distinct` is equal are duplicates; None allows all.

    `write` uses the order of the choices, since a set has none.
    """

    def check(raw: object) -> Any:
        if not isinstance(raw, list):
            raise InvalidError("expected a list in brackets")
        if not least <= len(raw) <= MAX_ENTRIES:
            raise InvalidError(f"expected {least} to {MAX_ENTRIES} entries")
        found: list[Any] = []
        for entry in raw:
            try:
                found.append(one.check(entry))
            except InvalidError as error:
                raise InvalidError(str(error), entry) from error
            if distinct is not None and [distinct(each) for each in found].count(distinct(found[-1])) > 1:
                raise InvalidError("duplicate entry", entry)
        return make(found)

    def write(values: Iterable[Any]) -> list[str]:
        written = [str(one.write(each)) for each in values]
        return sorted(written, key=one.choices.index) if one.choices else written

    return Kind(
        metavar="LIST" if one.choices else one.metavar,
        parse=lambda text: check([each.strip() for each in text.split(",")] if text or least else []),
        check=check,
        write=write,
        repeatable=True,
    )


def _string(raw: object) -> str:
    if not isinstance(raw, str):
        raise InvalidError("expected a string in quotes")
    return raw


def _number(raw: object, types: type[int] | tuple[type, ...], expected: str, least: float, most: float) -> Any:
    if isinstance(raw, bool) or not isinstance(raw, types) or not least <= raw <= most:  # type: ignore[operator]  # a number: mypy does not narrow by `types`
        raise InvalidError(f"expected {expected}")
    return raw


def integer(least: int, most: int) -> Kind:
    """Return the kind of an integer in a range."""

    def check(raw: object) -> int:
        return int(_number(raw, int, f"an integer from {least} to {most}", least, most))

    return Kind(
        metavar="N",
        parse=lambda text: check(int(text) if re.fullmatch(r"[0-9]{1,9}", text) else text),
        check=check,
        write=int,
    )


def _check_percentage(raw: object) -> float:
    expected = "a number above 0, at most 100"
    if _number(raw, (int, float), expected, 0, 100) == 0:
        raise InvalidError(f"expected {expected}")
    return float(raw)  # type: ignore[arg-type]


def _parse_duration(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|)", text)
    if found is None or float(found[1]) * _UNITS[found[2]] > MAX_SECONDS:
        raise InvalidError("expected a duration such as 500ms, 15s or 2m")
    return float(found[1]) * _UNITS[found[2]]


def _check_seconds(raw: object) -> float:
    return float(_number(raw, (int, float), f"a number of seconds from 0 to {MAX_SECONDS:.0f}", 0, MAX_SECONDS))


def _write_seconds(seconds: float) -> Toml:
    return int(seconds) if seconds == int(seconds) else float(seconds)


def _parse_boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise InvalidError("expected true or false")
    return _BOOLEANS[text.lower()]


def _check_boolean(raw: object) -> bool:
    if not isinstance(raw, bool):
        raise InvalidError("expected true or false")
    return raw


def parse_text(text: str) -> str:
    """Return a text that is not empty and has one line; else InvalidError."""
    if not text or not text.isprintable() or len(text) > MAX_TEXT:
        raise InvalidError(f"expected 1 to {MAX_TEXT} printable characters")
    return text


def parse_directory(text: str) -> Path:
    """Return an absolute path. Two slashes at its beginning are one on Linux, but not to `pathlib`."""
    if not text.startswith("/") or "\0" in text or len(text) > MAX_TEXT:
        raise InvalidError("expected an absolute path")
    return Path("/" + text.lstrip("/"))


def _parse_page(text: str) -> str:
    if re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", text) is None:
        raise InvalidError("expected a path such as /metrics")
    above = text.rpartition("/")[0]
    if text in OWN_PAGES or f"{above}/*" in OWN_PAGES or above == "/-":
        raise InvalidError("the exporter has another page there; use a path such as /metrics")
    return text


def _parse_address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise InvalidError("expected HOST:PORT or :PORT")
    if host.startswith("[") and host.endswith("]"):
        address, _, scope = host[1:-1].partition("%")
        if not _is_address(address, socket.AF_INET6) or not (scope.isalnum() or "%" not in host):
            raise InvalidError("expected an IPv6 address such as [::1]:10677")
        return host[1:-1], int(port)
    if ":" in host:
        raise InvalidError("expected an IPv6 address in brackets: [ADDRESS]:PORT")
    if re.fullmatch(r"[0-9.]+", host) and not _is_address(host, socket.AF_INET):
        raise InvalidError("expected an IPv4 address such as 127.0.0.1:10677")
    if re.fullmatch(r"[\w.-]{0,253}", host) is None:
        raise InvalidError("expected HOST:PORT or :PORT")
    return host, int(port)


def _is_address(text: str, family: socket.AddressFamily) -> bool:
    """Return whether bind() accepts the address. It also accepts short IPv4 addresses such as 127.1."""
    try:
        if family is socket.AF_INET:
            socket.inet_aton(text)
        else:
            socket.inet_pton(family, text)
    except (OSError, ValueError):
        return False
    return True


def write_address(address: Address) -> str:
    """Return an address as flags and files have it."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def overlapping(addresses: Sequence[Address]) -> tuple[Address, Address] | None:
    """Return two addresses that overlap; host names other than localhost are not resolved."""
    for number, first in enumerate(addresses):
        for second in addresses[:number]:
            if first[1] == second[1] != 0 and _covers(first[0], second[0]):
                return second, first
    return None


def _covers(first: str, second: str) -> bool:
    """Return whether two hosts have a common address. An empty host and :: are all addresses of both protocols."""
    hosts = {"127.0.0.1" if host == "localhost" else host for host in (first, second)}
    both_protocols, ipv4 = hosts & {"", "::"}, not any(":" in each for each in hosts)
    return len(hosts) == 1 or bool(both_protocols) or (ipv4 and "0.0.0.0" in hosts)  # noqa: S104 (nothing is bound)


def _parse_memory_limit(text: str) -> tuple[int, int]:
    """`nvidia-cuda-mps-control` accepts the units G and M only (its manual page)."""
    found = re.fullmatch(r"([0-9]|[1-5][0-9]|6[0-3])=([0-9]{1,12}[GM])", text)
    size = None if found is None else parse_byte_size(found[2])
    if found is None or size is None or size > MAX_MEMORY_BYTES:
        raise InvalidError("expected a device and a size, such as 0=2G or 1=512M")
    return int(found[1]), size


DURATION = Kind(metavar="DURATION", parse=_parse_duration, check=_check_seconds, write=_write_seconds)
"""A duration: with a unit in flags and variables, a number of seconds in files."""

BOOLEAN = Kind(metavar="BOOL", parse=_parse_boolean, check=_check_boolean, write=bool, boolean=True)
PERCENTAGE = Kind(metavar="PERCENT", parse=_check_percentage, check=_check_percentage, write=float)
ADDRESS = text_kind("HOST:PORT", _parse_address, write_address)
FILE = text_kind("FILE", lambda text: Path(parse_text(text)))
DIRECTORY = text_kind("DIR", parse_directory)
PAGE = text_kind("PATH", _parse_page)
WORDS = list_of(text_kind("WORD", parse_text), distinct=None)
MEMORY_LIMITS = list_of(
    text_kind("DEVICE=SIZE", _parse_memory_limit, lambda limit: f"{limit[0]}={format_byte_size(limit[1])}"),
    distinct=lambda limit: limit[0],
)
