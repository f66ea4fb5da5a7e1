"""The configuration of a running service: the watchdog's policy that follows from it, and its reload."""

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from exporter.config.load import DEFAULT_FILE, build_config
from exporter.config.options import OPTIONS
from exporter.config.settings import Config
from exporter.errors import ConfigError
from exporter.watchdog.context import DaemonPolicy, Policy


def policy_of(config: Config) -> Policy:
    """Return the policy of the watchdog. The general mode applies to a daemon that is not configured."""
    daemon_policies = {
        daemon.name: DaemonPolicy(
            mode=daemon.watchdog, unit=daemon.unit, command=daemon.restart_command, limits=daemon.limits
        )
        for daemon in config.daemons
    }
    return Policy(
        mode=config.watchdog,
        thresholds=replace(config.constants.rules, allow=config.watchdog_allow),
        daemon_policies=daemon_policies,
        program=config.constants.control_executable,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloaded:
    """Result of a reload: the configuration now in effect, which is the old one if there is a `problem`.

    `unchanged` has the keys that the file changes and that take effect only at the next start.
    """

    config: Config
    problem: str | None = None
    unchanged: tuple[str, ...] = ()


class Reloader:
    """Reads the configuration again, with the command line and the environment of the start."""

    def __init__(
        self,
        arguments: Namespace,
        environment: Mapping[str, str],
        config: Config,
        default_file: Path | None = DEFAULT_FILE,
        completed: Callable[[Config], Config] = lambda config: config,
    ) -> None:
        """`config` is the one in effect, just read; `completed` adds what is not an option."""
        self._arguments = arguments
        self._environment = dict(environment)
        self._config = config
        self._default_file = default_file
        self._completed = completed
        self.valid = True
        """Whether the configuration was valid when it was last read."""

    def reload(self) -> Reloaded:
        """Read the configuration again. If it cannot be used, the old one stays in effect."""
        try:
            constants = self._config.constants
            read = build_config(self._arguments, self._environment, self._default_file, constants)
        except ConfigError as error:
            self.valid = False
            return Reloaded(config=self._config, problem=str(error))
        read = self._completed(read)
        unchanged = [each for each in OPTIONS if not each.reloadable and each.of(read) != each.of(self._config)]
        for option in unchanged:
            read = option.set(read, option.of(self._config))
        self._config = read
        self.valid = True
        return Reloaded(config=read, unchanged=tuple(option.key for option in unchanged))
