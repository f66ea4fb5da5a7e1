"""Checks of values. A check takes a value as the file has it, and returns it as the configuration has it."""

import re
import socket
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from exporter.errors import ConfigError
from exporter.model.settings import LOG_DIRECTORY, PIPE_DIRECTORY, AllowedAction
from exporter.parse.mps_variables import format_byte_size, parse_byte_size
from exporter.parse.units import is_service_name

MAX_TEXT = 4096  # maximum length of a text, in characters; a path may not be longer either (PATH_MAX)

LONGEST_SOCKET_PATH = 107
"""Maximum length of a unix socket's path in bytes (unix(7)). A control daemon with a longer one cannot start."""

MAX_NAME = 128
MAX_ENTRIES = 64
MAX_SECONDS = 1e9

OWN_PAGES = (
    "/status", "/page.js", "/page.css", "/-/healthy", "/healthz", "/-/ready", "/readyz", "/runbooks", "/runbooks/*",
    "/incidents", "/incidents/*", "/events", "/clients/*",
    "/api/v1/status", "/api/v1/incidents", "/api/v1/incidents/*", "/api/v1/events",
)  # fmt: skip
"""The other pages of the exporter. `/*` stands for all pages one level below."""

_BASE_URL = r"https?://([\w.-]+|\[[\da-fA-F:.]+\])(:\d{1,5})?(/[\w.~%/-]*)?"

Address = tuple[str, int]
Check = Callable[[Any], Any]

_BOOLEANS = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0"), False)
_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class InvalidError(ValueError):
    """A value that cannot be used. The text names the value and what is expected."""

    def __init__(self, value: object, expected: str) -> None:
        super().__init__(f"invalid value {shown(value)}: {expected}")


def checked(where: str, check: Check, value: object) -> Any:
    """Return what a check returns; ConfigError begins with `where`."""
    try:
        return check(value)
    except InvalidError as error:
        raise ConfigError(f"{where}: {error}") from error


def shown(value: object) -> str:
    """Return a value as a message shows it: on one line, and short."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # more digits, or more brackets, than Python writes
        return "(too large to show)"
    return text if len(text) <= 200 else f"{text[:200]}…"


def from_text(text: str, default: object) -> object:
    """Return the text of a flag or variable as the file would have it; the type is that of the option's default."""
    match default:
        case bool():
            return _BOOLEANS.get(text.lower(), text)
        case int():
            return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else text
        case float():
            return duration(text)
        case tuple() | frozenset():
            return [entry.strip() for entry in text.split(",")] if text else []
        case _:
            return text


def duration(text: str) -> float:
    """Return a duration with a unit in seconds."""
    number = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|)", text)
    if number is None or float(number[1]) * _UNITS[number[2]] > MAX_SECONDS:
        raise InvalidError(text, "expected a duration such as 500ms, 15s or 2m")
    return float(number[1]) * _UNITS[number[2]]


def one_of(words: Iterable[str]) -> Check:
    """Return the check for one of a few words; the members of an enumeration are values of it."""
    choices = {str(word): word for word in words}
    return typed(str, f"one of {', '.join(choices)}", choices.__contains__, choices.__getitem__)


def entries(check: Check, least: int = 1, distinct: Check | None = lambda value: value) -> Check:
    """Return the check for a list. Two entries with equal `distinct` are duplicates; None allows all."""

    def check_all(raw: object) -> tuple[Any, ...]:
        if not isinstance(raw, list):
            raise InvalidError(raw, "expected a list in brackets")
        if not least <= len(raw) <= MAX_ENTRIES:
            raise InvalidError(raw, f"expected {least} to {MAX_ENTRIES} entries")
        values: list[Any] = []
        for entry in raw:
            value = check(entry)
            if distinct is not None and distinct(value) in map(distinct, values):
                raise InvalidError(entry, "duplicate entry")
            values.append(value)
        return tuple(values)

    return check_all


def typed(kind: type, expected: str, valid: Check = lambda _value: True, make: Check | None = None) -> Check:
    """Return the check for a `valid` value of a type, turned into another by `make`. An integer is a float too."""
    types = (int, float) if kind is float else (kind,)

    def check(raw: object) -> Any:
        if type(raw) not in types or not valid(raw):  # isinstance() would take a boolean for an integer
            raise InvalidError(raw, f"expected {expected}")
        return (make or kind)(raw)

    return check


def _is_line(text: str) -> bool:
    return text.isprintable() and 0 < len(text) <= MAX_TEXT


def _is_free_page(text: str) -> bool:
    above = text.rpartition("/")[0]
    own = text in OWN_PAGES or f"{above}/*" in OWN_PAGES or above == "/-"
    return re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", text) is not None and not own


SECONDS = typed(float, f"a number of seconds from 0 to {MAX_SECONDS:.0f}", lambda number: 0 <= number <= MAX_SECONDS)
LINE = typed(str, f"a string of 1 to {MAX_TEXT} printable characters", _is_line)
FILE = typed(str, f"a string of 1 to {MAX_TEXT} printable characters", _is_line, Path)
DIRECTORY = typed(
    str,
    "an absolute path",
    lambda text: text.startswith("/") and "\0" not in text and len(text) <= MAX_TEXT,
    # Two slashes at the beginning are one on Linux, but not to `pathlib`.
    lambda text: Path("/" + text.lstrip("/")),
)
NAME = typed(
    str,
    f"a string of 1 to {MAX_NAME} printable characters that do not begin with a hyphen, as an option does",
    lambda text: _is_line(text) and len(text) <= MAX_NAME and not text.startswith("-"),
)
NAMESPACE = typed(str, "a namespace of Kubernetes", re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?").fullmatch)
PAGE = typed(str, "a path such as /metrics, where the exporter has no other page", _is_free_page)
UNIT = typed(str, "a service that runs nothing else, such as nvidia-cuda-mps.service", is_service_name)

POD_LABEL = typed(
    str,
    "the key of a pod label, such as team or app.kubernetes.io/name",
    lambda text: re.fullmatch(r"([a-z0-9][a-z0-9.-]{0,252}/)?[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", text, re.ASCII),
)


def base_url(raw: Any) -> str:
    """Check the base URL of another server. Each visitor of the page can read it."""
    if type(raw) is not str or not re.fullmatch(_BASE_URL, raw, re.ASCII) or len(raw) > MAX_TEXT:
        # The message must not contain a password either.
        masked = re.sub("(?s)//.*@", "//…@", raw) if type(raw) is str else raw
        example = "such as https://grafana.example.com, without user, password, query and fragment"
        raise InvalidError(masked, f"expected the http or https URL of a server, {example}")
    return raw.rstrip("/")


def pipe_directory(raw: object) -> Path:
    """Check an absolute path that is short enough for a daemon's sockets."""
    path: Path = DIRECTORY(raw)
    if len(str(path / "control_privileged").encode(errors="surrogateescape")) > LONGEST_SOCKET_PATH:
        problem = f"the path of a socket there has over {LONGEST_SOCKET_PATH} bytes, so no MPS daemon can run there"
        raise InvalidError(raw, f"{problem}; use a shorter directory")
    return path


def address(raw: object) -> Address:
    """Check an address that bind() accepts. It also accepts short IPv4 addresses such as 127.1."""
    parts = re.fullmatch(r"(\[([^%]+)(?:%\w+)?\]|[\w.-]{0,253}):([0-9]{1,5})", raw if isinstance(raw, str) else "")
    try:
        if parts is None or int(parts[3]) > 65535:
            raise ValueError
        if parts[2]:
            socket.inet_pton(socket.AF_INET6, parts[2])
        elif re.fullmatch(r"[0-9.]+", parts[1]):
            socket.inet_aton(parts[1])
    except (OSError, ValueError) as error:
        expected = "expected HOST:PORT or :PORT, with an IPv6 address in brackets, such as [::1]:10677"
        raise InvalidError(raw, expected) from error
    return parts[1].strip("[]"), int(parts[3])


def overlapping(addresses: Sequence[Address]) -> tuple[Address, Address] | None:
    """Return two addresses that overlap; only localhost is resolved. An empty host and :: are all of both protocols."""
    for first, second in combinations(addresses, 2):
        hosts = {"127.0.0.1" if host == "localhost" else host for host, _ in (first, second)}
        everywhere = {"", "::"} if any(":" in host for host in hosts) else {"", "0.0.0.0"}  # noqa: S104 (nothing is bound)
        if first[1] == second[1] != 0 and (len(hosts) == 1 or hosts & everywhere):
            return first, second
    return None


def user(raw: Any) -> int:
    """Check a user's name or number, and return the UID."""
    # Imported only if the key is set: `status` beside a running service loads no module of the service.
    from exporter.collectors.child import uid_of

    uid = uid_of(str(raw) if type(raw) is int and raw < 1 << 32 else LINE(raw))
    if uid is None:
        raise InvalidError(raw, "there is no such user")
    return uid


def command(raw: object) -> tuple[str, ...]:
    """Check the words of a command. The watchdog sets the variables of MPS for it."""
    words: tuple[str, ...] = entries(LINE, distinct=None)(raw)
    keys = {PIPE_DIRECTORY: "pipe_directory", LOG_DIRECTORY: "log_directory"}
    for word in words if words[0] == "env" else ():
        key = keys.get(word.partition("=")[0])
        if key is not None:
            raise InvalidError(word, f"the variable is set by {key}; remove it")
    return words


def memory_limit(raw: object) -> tuple[int, int]:
    """Check a device and its bytes. `nvidia-cuda-mps-control` accepts the units G and M only (its manual page)."""
    limit = re.fullmatch(r"([0-9]|[1-5][0-9]|6[0-3])=([0-9]{1,6}G|[0-9]{1,9}M)", raw if isinstance(raw, str) else "")
    size = None if limit is None else parse_byte_size(limit[2])
    if limit is None or size is None:
        raise InvalidError(raw, "expected a device and a size, such as 0=2G or 1=512M")
    return int(limit[1]), size


def plain(value: object) -> object:
    """Return a value as the file has it: the opposite of its check."""
    match value:
        case (str() as host, int() as port):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        case (int() as device, int() as size):
            return f"{device}={format_byte_size(size)}"
        case tuple():
            return [plain(entry) for entry in value]
        case frozenset():
            return [action.value for action in AllowedAction if action in value]
        case float():
            return int(value) if value.is_integer() else value
        case Path():
            return str(value)
        case _:
            return value
