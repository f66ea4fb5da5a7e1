"""Build the configuration: a flag outweighs a variable, a variable the file, and the file the default."""

import json
import re
import stat
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from posixpath import normpath
from typing import Any

from exporter.config import settings
from exporter.config.checks import DIRECTORY, Check, checked, overlapping, pipe_directory, plain, shown
from exporter.config.settings import DAEMON_KEYS, SECTIONS, Config, Constants, DaemonConfig, Option
from exporter.errors import ConfigError
from exporter.model.settings import DEFAULT_LOG_DIRECTORY, DEFAULT_PIPE_DIRECTORY, LOG_DIRECTORY, PIPE_DIRECTORY

DEFAULT_FILE = Path("/etc/cuda-mps-exporter/config.toml")
FILE_VARIABLE = f"{settings.PREFIX}CONFIG_FILE"
MAX_BYTES = 1 << 20
MAX_DAEMONS = 64

_OTHER_VARIABLES = re.compile(
    # The unit passes its arguments in one, and the tests have two.
    r"ARGS|RECORDINGS|NOTHING_SKIPPED"
    # Kubernetes sets these in every pod if there is a Service of the name cuda-mps-exporter.
    r"|SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?"
)

Values = dict[str, Any]  # values of options by attribute


def build_config(
    arguments: Namespace,
    environment: Mapping[str, str],
    default_file: Path | None = DEFAULT_FILE,
    constants: Constants | None = None,
) -> Config:
    """Return the configuration of a command; ConfigError names what cannot be used."""
    _refuse_unknown_variables(environment)
    command, in_file = arguments.command, Values()
    if command in settings.CONFIGURED:
        file = arguments.config_file
        if file is None:
            file = environment.get(FILE_VARIABLE) or default_file
        if file:
            in_file = read_document(Path(file), optional=file is default_file)
    values = {option.attribute: _value(option, arguments, environment, in_file) for option in settings.OPTIONS}
    config = Config(
        daemons=_declared_daemons(arguments, environment, in_file),
        constants=constants or Constants(),
        **{option.attribute: values[option.attribute] for option in settings.OPTIONS if command in option.commands},
    )
    overlap = overlapping(config.listen)
    if overlap is not None and not config.systemd_socket:
        first, second = map(plain, overlap)
        raise ConfigError(
            f"web.listen_address: {first} and {second} overlap, so the exporter cannot listen on both; remove one"
        )
    return config


def _value(option: Option, arguments: Namespace, environment: Mapping[str, str], in_file: Values) -> Any:
    """Return the value of an option. An empty variable sets nothing."""
    value = option.defaults.get(arguments.command, option.default)
    if directories := environment.get(option.systemd):
        value = option.parse(option.systemd, directories.split(":")[0])
    value = in_file.get(option.attribute, value)
    if text := environment.get(option.variable):
        value = option.parse(option.variable, text)
    flag = vars(arguments).get(option.flag)
    if flag is not None:
        value = option.parse(option.flag, ",".join(flag) if isinstance(flag, list) else str(flag))
    return value


def _refuse_unknown_variables(environment: Mapping[str, str]) -> None:
    variables = [*(option.variable for option in settings.OPTIONS), FILE_VARIABLE]
    for variable in sorted(environment):
        name = variable.removeprefix(settings.PREFIX)
        if name != variable and variable not in variables and not _OTHER_VARIABLES.fullmatch(name):
            raise ConfigError(_unknown(variable, variables, "variable"))


# -- the file -----------------------------------------------------------------------------------------------------


def read_document(path: Path, *, optional: bool = False) -> Values:
    """Read a configuration file. An `optional` one may be absent. ConfigError names what cannot be used."""
    try:
        # A pipe could block, and a device has no end.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ConfigError(f"{path}: not a regular file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_BYTES} bytes")
        # Editors of Windows begin a file with a byte order mark, which TOML does not permit.
        text = content.decode("utf-8-sig")
    except FileNotFoundError as error:
        if optional:
            return {}
        raise ConfigError(f"{path}: no such file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text, at byte {error.start}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', error)}") from error
    return parse_document(path, text)


def parse_document(path: Path, text: str) -> Values:
    """Return the values of a configuration file, with its `path` and `daemons`; ConfigError names what is wrong."""
    import tomllib

    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: invalid TOML: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: invalid TOML: a number is too long, or keys or brackets are too deep") from error
    values: Values = {"path": path, "daemons": _daemons(f"{path}: daemons", tables.pop("daemons", []))}
    for section, table in tables.items():
        if section not in settings.SECTIONS:
            raise ConfigError(f"{path}: {_unknown(section, (*settings.SECTIONS, 'daemons'), 'section')}")
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {section}: expected a section: write [{section}] and its keys below")
        values |= _checked_table(f"{path}: {section}", settings.SECTIONS[section], table)
    return values


def _checked_table(place: str, options: Mapping[str, Option], table: Mapping[str, object]) -> Values:
    values = {}
    for key, raw in table.items():
        if key not in options:
            others = [section for section, keys in settings.SECTIONS.items() if key in keys]
            hint = f"; it belongs to [{others[0]}]" if others else ""
            raise ConfigError(f"{place}: {_unknown(key, options, 'key')}{hint}")
        values[options[key].attribute] = checked(f"{place}.{key}", options[key].check, raw)
    return values


def _unknown(name: str, known: Iterable[str], what: str) -> str:
    import difflib

    near = difflib.get_close_matches(name[:100], known, n=1)
    return f"unknown {what} {shown(name)}" + (f"; did you mean {near[0]}?" if near else "")


# -- daemons ------------------------------------------------------------------------------------------------------


def _declared_daemons(
    arguments: Namespace, environment: Mapping[str, str], in_file: Values
) -> tuple[DaemonConfig, ...]:
    """Return the daemon of the flags, else those of the file, else that of MPS' own variables, else none."""
    daemons: tuple[DaemonConfig, ...] = in_file.get("daemons", ())
    pipe = _directory("--pipe-directory", getattr(arguments, "pipe_directory", None), pipe_directory)
    log = _directory("--log-directory", getattr(arguments, "log_directory", None), DIRECTORY)
    if daemons and pipe is None:
        if log is not None:
            raise ConfigError(f"--log-directory: {in_file['path']} names daemons; add --pipe-directory")
        return daemons
    usual_pipe = _directory(PIPE_DIRECTORY, environment.get(PIPE_DIRECTORY), pipe_directory)
    usual_log = _directory(LOG_DIRECTORY, environment.get(LOG_DIRECTORY), DIRECTORY)
    if pipe is None and log is None and usual_pipe is None:
        return ()
    daemon = DaemonConfig(
        pipe_directory=pipe or usual_pipe or Path(DEFAULT_PIPE_DIRECTORY),
        log_directory=usual_log or Path(DEFAULT_LOG_DIRECTORY),
    )
    same = (other for other in daemons if normpath(other.pipe_directory) == normpath(daemon.pipe_directory))
    daemon = next(same, daemon)
    return (daemon if log is None else replace(daemon, log_directory=log),)


def _directory(where: str, text: str | None, check: Check) -> Path | None:
    return checked(where, check, text) if text else None


def _daemons(where: str, tables: object) -> tuple[DaemonConfig, ...]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{where}: begin each daemon with a line [[daemons]]")
    if len(tables) > MAX_DAEMONS:
        raise ConfigError(f"{where}: {len(tables)} daemons; at most {MAX_DAEMONS}")
    daemons = []
    for number, table in enumerate(tables, start=1):
        place = f"{where}[{number}]"
        values = _checked_table(place, settings.DAEMON_KEYS, table)
        if "pipe_directory" not in values:
            raise ConfigError(f"{place}: pipe_directory is missing; add it")
        if "unit" in values and "restart_command" in values:
            raise ConfigError(f"{place}: unit and restart_command exclude each other; remove one")
        daemons.append(DaemonConfig(**values))
    for key, own in (
        ("name", [daemon.name for daemon in daemons]),
        ("pipe_directory", [normpath(daemon.pipe_directory) for daemon in daemons]),
        # A daemon that logs to its journal does not write to these files.
        ("log_directory", [normpath(daemon.log_directory) for daemon in daemons if daemon.unit is None]),
    ):
        for value, count in Counter(own).items():
            if count > 1:
                raise ConfigError(f"{where}: {count} daemons have the {key} {value!r}; each needs its own")
    return tuple(daemons)


# -- reload -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Reloader:
    """Reads the configuration again, with the command line and the environment of the start.

    `config` is the one in effect; `completed` adds what is not an option. `problem` is why the configuration could not
    be used when it was last read. `needs_restart` has the keys that the file changes and that take effect only at the
    next start.
    """

    arguments: Namespace
    environment: Mapping[str, str]
    config: Config
    completed: Callable[[Config], Config] = lambda config: config
    problem: str | None = None
    needs_restart: tuple[str, ...] = ()

    def reload(self) -> Config:
        """Read the configuration again. If it cannot be used, the old one stays in effect."""
        before, self.problem, self.needs_restart = self.config, None, ()
        try:
            read = self.completed(build_config(self.arguments, self.environment, constants=before.constants))
        except ConfigError as error:
            self.problem = str(error)
            return before
        self.needs_restart = tuple(option.key for option in settings.FIXED if option.of(read) != option.of(before))
        self.config = replace(read, **{option.attribute: option.of(before) for option in settings.FIXED})
        return self.config


def as_toml(config: Config) -> str:
    """Return a configuration as a file, with its defaults. Reading that file gives the same configuration."""
    tables = [(f"[{section}]", _lines(options, config)) for section, options in SECTIONS.items()]
    tables += [("[[daemons]]", _lines(DAEMON_KEYS, daemon)) for daemon in config.daemons]
    return "".join("\n".join((head, *lines, "", "")) for head, lines in tables)


def _lines(options: Mapping[str, Option], config: object) -> Iterator[str]:
    for key, option in options.items():
        value = option.of(config)
        if value not in (None, ()):
            yield f"{key} = {toml(plain(value))}"
        elif option.flag:
            yield f'# {key} = "…"' if value is None else f'# {key} = ["…"]'


def toml(value: object) -> str:
    """Return a value in TOML: as JSON, with DEL escaped. Bytes that are not UTF-8 have no form: question marks."""
    text = json.dumps(value, ensure_ascii=False)
    return text.encode(errors="replace").decode().replace("\x7f", "\\u007f")


def default_text(option: Option, command: str) -> str:
    """Return the default of a command's option, as its flag has it."""
    match plain(option.defaults.get(command, option.default)):
        case None | []:
            return "none"
        case list() as entries:
            return ", ".join(entries)
        case bool() as value:
            return toml(value)
        case value:
            return f"{value}s" if isinstance(option.default, float) else f"{value}"
