"""Puts the configuration together: flags outweigh the environment, that the file, and that the defaults."""

from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from exporter.config.daemons import watched_daemons
from exporter.config.document import DEFAULT_FILE, FILE_VARIABLE, Document, read_document
from exporter.config.environment import read_environment
from exporter.config.option import Option
from exporter.config.options import CONFIGURED, DEFAULTS, DEFAULTS_OF, OPTIONS
from exporter.config.settings import Config
from exporter.config.values import overlapping, written_address
from exporter.errors import ConfigError

_MADE_BY_SYSTEMD = {"runtime_directory": "RUNTIME_DIRECTORY", "state_directory": "STATE_DIRECTORY"}


def build_config(
    arguments: Namespace, environment: Mapping[str, str], default_file: Path | None = DEFAULT_FILE
) -> Config:
    """The configuration that flags, environment and file make; ConfigError names what cannot be used."""
    document = _document(arguments, environment, default_file)
    config = DEFAULTS
    for values in (
        _defaults(arguments.command, environment),
        document.values.items(),
        read_environment(environment),
        _flags(arguments),
    ):
        for option, value in values:
            if arguments.command in option.commands:
                config = option.set(config, value)
    _check(config)
    daemons = watched_daemons(arguments, environment, document, discovery=config.discovery.enabled)
    return replace(config, daemons=daemons)


def nearest_config(
    arguments: Namespace, environment: Mapping[str, str], default_file: Path | None = DEFAULT_FILE
) -> tuple[Config, str | None]:
    """The configuration, or what comes nearest to it and what is wrong: without the file, then without environment.

    ConfigError names a flag that cannot be used.
    """
    without_file = Namespace(**{**vars(arguments), "config_file": ""})
    problem = None
    for flags, variables in ((arguments, environment), (without_file, environment)):
        try:
            return build_config(flags, variables, default_file), problem
        except ConfigError as error:
            problem = problem or str(error)
    return build_config(without_file, {}, default_file), problem


def _document(arguments: Namespace, environment: Mapping[str, str], default_file: Path | None) -> Document:
    if arguments.command not in CONFIGURED:
        return Document(values={})
    named = arguments.config_file
    if named is None:
        named = environment.get(FILE_VARIABLE) or default_file
    if not named:
        return Document(values={})
    return read_document(Path(named), optional=named is default_file)


def _defaults(command: str, environment: Mapping[str, str]) -> Iterator[tuple[Option, object]]:
    """What this command does otherwise, and the directories that systemd made for this program (systemd.exec(5))."""
    others = DEFAULTS_OF.get(command, {})
    for option in OPTIONS:
        if option.attribute in others:
            yield option, others[option.attribute]
        variable = _MADE_BY_SYSTEMD.get(option.attribute, "")
        if environment.get(variable):
            yield option, option.kind.of_text(variable, environment[variable].split(":")[0])


def _flags(arguments: Namespace) -> Iterator[tuple[Option, object]]:
    given = vars(arguments)
    for option in OPTIONS:
        if option.name in given:
            yield option, _of_flag(option, given[option.name])


def _of_flag(option: Option, given: bool | str | list[str]) -> object:
    match given:
        case bool():
            return option.kind.of_toml(option.name, given)
        case list():
            return option.kind.of_text(option.name, ",".join(given))
        case _:
            return option.kind.of_text(option.name, given)


def _check(config: Config) -> None:
    """Refuse what cannot be meant together."""
    twice = overlapping(config.listen)
    if twice is not None and not config.systemd_socket:
        first, second = map(written_address, twice)
        raise ConfigError(
            f"web.listen_address: {first} and {second} overlap, so the exporter cannot listen on both; leave one out"
        )
    if config.rhythm.lists < config.rhythm.liveness:
        raise ConfigError(
            f"rhythm.lists_seconds: {config.rhythm.lists:g} is less than rhythm.liveness_seconds,"
            f" {config.rhythm.liveness:g}, but a daemon is asked for its lists only where it lives"
        )
    if config.rules.longest_backoff < config.rules.backoff:
        raise ConfigError(
            f"watchdog.longest_backoff_seconds: {config.rules.longest_backoff:g} is less than"
            f" watchdog.backoff_seconds, {config.rules.backoff:g}, which is the shortest"
        )
