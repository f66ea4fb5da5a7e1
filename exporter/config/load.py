"""Build the configuration: a flag outweighs a variable, a variable the file, and the file the default."""

import difflib
import posixpath
import re
import stat
import tomllib
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from exporter.config.options import (
    CONFIGURED,
    DAEMON_KEYS,
    DAEMONS,
    DEFAULTS_OF,
    OPTIONS,
    PREFIX,
    Option,
    parse_pipe_directory,
)
from exporter.config.settings import Config, Constants, DaemonConfig
from exporter.config.values import DIRECTORY, overlapping, shown, text_kind, write_address
from exporter.errors import ConfigError
from exporter.model.settings import DEFAULT_LOG_DIRECTORY, DEFAULT_PIPE_DIRECTORY, LOG_DIRECTORY, PIPE_DIRECTORY

DEFAULT_FILE = Path("/etc/cuda-mps-exporter/config.toml")
FILE_VARIABLE = f"{PREFIX}CONFIG_FILE"
MAX_BYTES = 1 << 20
MAX_DAEMONS = 64

_PIPE = text_kind("DIR", parse_pipe_directory)
_SET_BY_SYSTEMD = {"runtime_directory": "RUNTIME_DIRECTORY", "state_directory": "STATE_DIRECTORY"}
_SET_OTHERWISE = {PIPE_DIRECTORY: "pipe_directory", LOG_DIRECTORY: "log_directory"}
"""Variables that make another daemon of it."""

_OTHER_VARIABLES = re.compile(
    # The unit passes its arguments in one, and the tests have two.
    r"ARGS|RECORDINGS|NOTHING_SKIPPED"
    # Kubernetes sets these in every pod if there is a Service of the name cuda-mps-exporter.
    r"|SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?"
)

Setting = tuple[Option, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The content of a configuration file: options, and daemons as written. Without a file, `path` is None."""

    path: Path | None = None
    values: Mapping[Option, object] = field(default_factory=dict)
    daemons: tuple[Mapping[str, object], ...] = ()


def build_config(
    arguments: Namespace,
    environment: Mapping[str, str],
    default_file: Path | None = DEFAULT_FILE,
    constants: Constants | None = None,
) -> Config:
    """Return the configuration of a command; ConfigError names what cannot be used."""
    document = _document(arguments, environment, default_file)
    config = Config(constants=constants or Constants())
    for settings in (
        _defaults(arguments.command, environment),
        document.values.items(),
        read_environment(environment),
        _flags(arguments),
    ):
        for option, value in settings:
            if arguments.command in option.commands:
                config = option.set(config, value)
    overlap = overlapping(config.listen)
    if overlap is not None and not config.systemd_socket:
        first, second = map(write_address, overlap)
        raise ConfigError(
            f"web.listen_address: {first} and {second} overlap, so the exporter cannot listen on both; remove one"
        )
    return replace(config, daemons=_watched_daemons(arguments, environment, document))


def nearest_config(
    arguments: Namespace,
    environment: Mapping[str, str],
    default_file: Path | None = DEFAULT_FILE,
    constants: Constants | None = None,
) -> tuple[Config, str | None]:
    """Return the configuration, else one without the file, else one without variables too, and the problem.

    ConfigError names a flag that cannot be used.
    """
    without_file = Namespace(**{**vars(arguments), "config_file": ""})
    problem = None
    for flags, variables in ((arguments, environment), (without_file, environment)):
        try:
            return build_config(flags, variables, default_file, constants), problem
        except ConfigError as error:
            problem = problem or str(error)
    return build_config(without_file, {}, default_file, constants), problem


# -- flags and environment ----------------------------------------------------------------------------------------


def _defaults(command: str, environment: Mapping[str, str]) -> Iterator[Setting]:
    """Yield the command's own defaults, and the directories that systemd created (systemd.exec(5))."""
    others = DEFAULTS_OF.get(command, {})
    for option in OPTIONS:
        if option.attribute in others:
            yield option, others[option.attribute]
        variable = _SET_BY_SYSTEMD.get(option.attribute, "")
        if environment.get(variable):
            yield option, option.kind.of_text(variable, environment[variable].split(":")[0])


def read_environment(environment: Mapping[str, str]) -> Iterator[Setting]:
    """Yield the options that variables set; an empty variable sets nothing. ConfigError names an unknown one."""
    options = {option.variable: option for option in OPTIONS}
    for variable in sorted(environment):
        if not variable.startswith(PREFIX) or variable == FILE_VARIABLE:
            continue
        if variable in options:
            if environment[variable]:
                yield options[variable], options[variable].kind.of_text(variable, environment[variable])
        elif not _OTHER_VARIABLES.fullmatch(variable.removeprefix(PREFIX)):
            raise ConfigError(_unknown(variable, (*options, FILE_VARIABLE), "variable"))


def _flags(arguments: Namespace) -> Iterator[Setting]:
    given = vars(arguments)
    for option in OPTIONS:
        match given.get(option.name):
            case None:
                continue
            case bool() as value:
                yield option, value
            case list() as texts:
                yield option, option.kind.of_text(option.name, ",".join(texts))
            case text:
                yield option, option.kind.of_text(option.name, text)


# -- the file -----------------------------------------------------------------------------------------------------


def _document(arguments: Namespace, environment: Mapping[str, str], default_file: Path | None) -> Document:
    if arguments.command not in CONFIGURED:
        return Document()
    named = arguments.config_file
    if named is None:
        named = environment.get(FILE_VARIABLE) or default_file
    return read_document(Path(named), optional=named is default_file) if named else Document()


def read_document(path: Path, *, optional: bool = False) -> Document:
    """Read a configuration file. An `optional` one may be absent. ConfigError names what cannot be used."""
    try:
        text = _text(path)
    except FileNotFoundError as error:
        if optional:
            return Document()
        raise ConfigError(f"{path}: no such file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text, at byte {error.start}") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: cannot be read: its name has a null byte") from error
    return parse_document(path, text)


def _text(path: Path) -> str:
    """Read a regular file only: a pipe could block, and a device has no end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ConfigError(f"{path}: not a regular file")
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_BYTES} bytes")
    # Editors of Windows begin a file with a byte order mark, which TOML does not permit.
    return content.decode("utf-8-sig")


def parse_document(path: Path, text: str) -> Document:
    """Parse the text of a configuration file; ConfigError names what cannot be used."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: invalid TOML: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: invalid TOML: a number is too long, or brackets are too deep") from error
    daemons = tables.pop(DAEMONS, [])
    if not isinstance(daemons, list) or not all(isinstance(each, dict) for each in daemons):
        raise ConfigError(f"{path}: {DAEMONS}: begin each daemon with a line [[{DAEMONS}]]")
    values: dict[Option, object] = {}
    for section, content in tables.items():
        values |= _section(path, section, content)
    return Document(path=path, values=values, daemons=tuple(daemons))


def _section(path: Path, section: str, content: object) -> dict[Option, object]:
    options = {option.key_in_section: option for option in OPTIONS if option.section == section}
    if not options:
        raise ConfigError(f"{path}: {_unknown(section, (*(each.section for each in OPTIONS), DAEMONS), 'section')}")
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: {section}: expected a section: write [{section}] and its keys below")
    values: dict[Option, object] = {}
    for key, raw in content.items():
        if key not in options:
            belongs = [option.section for option in OPTIONS if option.key_in_section == key]
            hint = f"; it belongs to [{belongs[0]}]" if belongs else ""
            raise ConfigError(f"{path}: [{section}] {_unknown(key, options, 'key')}{hint}")
        values[options[key]] = options[key].kind.of_toml(f"{path}: {options[key].key}", raw)
    return values


def _unknown(name: str, known: Iterable[str], what: str) -> str:
    near = difflib.get_close_matches(name[:100], known, n=1)
    return f"unknown {what} {shown(name)}" + (f"; did you mean {near[0]}?" if near else "")


# -- daemons ------------------------------------------------------------------------------------------------------


def _watched_daemons(
    arguments: Namespace, environment: Mapping[str, str], document: Document
) -> tuple[DaemonConfig, ...]:
    """Return the daemon of the flags, else those of the file, else that of MPS' own variables, else none."""
    configured = _configured(document)
    pipe, log = (
        kind.of_text(f"--{flag}-directory", text) if (text := getattr(arguments, f"{flag}_directory", None)) else None
        for flag, kind in (("pipe", _PIPE), ("log", DIRECTORY))
    )
    if configured and pipe is None:
        if log is not None:
            raise ConfigError(f"--log-directory: {document.path} names daemons; add --pipe-directory")
        return configured
    usual_pipe, usual_log = (
        kind.of_text(name, environment[name]) if environment.get(name) else None
        for name, kind in ((PIPE_DIRECTORY, _PIPE), (LOG_DIRECTORY, DIRECTORY))
    )
    if pipe is None and log is None and usual_pipe is None:
        return ()
    daemon = DaemonConfig(
        pipe_directory=pipe or usual_pipe or Path(DEFAULT_PIPE_DIRECTORY),
        log_directory=usual_log or Path(DEFAULT_LOG_DIRECTORY),
    )
    if pipe is not None:
        same = (each for each in configured if _normal(each.pipe_directory) == _normal(pipe))
        daemon = next(same, daemon)
    return (daemon if log is None else replace(daemon, log_directory=log),)


def _normal(path: Path) -> str:
    """Return a path without `..`, `.` and repeated slashes."""
    return posixpath.normpath(path)


def _configured(document: Document) -> tuple[DaemonConfig, ...]:
    where = f"{document.path}: {DAEMONS}"
    if len(document.daemons) > MAX_DAEMONS:
        raise ConfigError(f"{where}: {len(document.daemons)} daemons; at most {MAX_DAEMONS}")
    found = tuple(_daemon(f"{where}[{number}]", table) for number, table in enumerate(document.daemons, start=1))
    _refuse_duplicates(where, "name", [each.name for each in found])
    _refuse_duplicates(where, "pipe_directory", [each.pipe_directory for each in found])
    # A daemon that logs to its journal does not write to these files.
    _refuse_duplicates(where, "log_directory", [each.log_directory for each in found if each.unit is None])
    return found


def _daemon(where: str, table: Mapping[str, object]) -> DaemonConfig:
    keys = {each.key: each for each in DAEMON_KEYS}
    values: dict[str, Any] = {"log_directory": Path(DEFAULT_LOG_DIRECTORY)}
    for key, raw in table.items():
        if key not in keys:
            raise ConfigError(f"{where}: {_unknown(key, keys, 'key')}")
        values[keys[key].attribute] = keys[key].kind.of_toml(f"{where}.{key}", raw)
    if "pipe_directory" not in values:
        raise ConfigError(f"{where}: pipe_directory is missing; add it")
    for each in DAEMON_KEYS:
        if each.key in table and each.instead_of in table:
            raise ConfigError(f"{where}: {each.instead_of} and {each.key} exclude each other; remove one")
    command = values.get("restart_command", ())
    for name in (word.partition("=")[0] for word in command if command[0] == "env"):
        if name in _SET_OTHERWISE:
            raise ConfigError(f"{where}.restart_command: {name} is set by {_SET_OTHERWISE[name]}; remove it")
    return DaemonConfig(**values)


def _refuse_duplicates(where: str, key: str, values: Sequence[str | Path]) -> None:
    normal = [_normal(value) if isinstance(value, Path) else value for value in values]
    for value, count in Counter(normal).items():
        if count > 1:
            written = dict.fromkeys(repr(str(each)) for each, its in zip(values, normal, strict=True) if its == value)
            raise ConfigError(f"{where}: {count} daemons have the {key} {', '.join(written)}; each needs its own")


def same_directories(daemons: Sequence[DaemonConfig]) -> str | None:
    """Return a problem if two daemons have one pipe directory by two paths (a link or a bind mount).

    A path that cannot be reached now is skipped. This reads the file system, which may hang.
    """
    known: dict[tuple[int, int], DaemonConfig] = {}
    for daemon in daemons:
        try:
            found = daemon.pipe_directory.stat()
        except OSError:
            continue
        first = known.setdefault((found.st_dev, found.st_ino), daemon)
        if first is not daemon:
            return (
                f"{DAEMONS}: {str(first.pipe_directory)!r} and {str(daemon.pipe_directory)!r} are the same directory"
                " (by a link or a bind mount), and a directory has one daemon; remove one of the two"
            )
    return None
