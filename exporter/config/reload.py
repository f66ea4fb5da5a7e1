"""The configuration read anew, while the exporter runs."""

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from exporter.clock import Clock
from exporter.config.build import build_config
from exporter.config.document import DEFAULT_FILE
from exporter.config.options import OPTIONS
from exporter.config.settings import Config
from exporter.errors import ConfigError
from exporter.view import ConfigStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloaded:
    """What came of a reload: the configuration from now on, which is the old one where there is a `problem`.

    `kept` are the keys of what has changed in the file, and stays as it is until the exporter starts anew.
    """

    config: Config
    problem: str | None = None
    kept: tuple[str, ...] = ()


class Reloader:
    """Reads the configuration anew, with the command line and the environment that the exporter was started with."""

    def __init__(
        self,
        arguments: Namespace,
        environment: Mapping[str, str],
        config: Config,
        clock: Clock,
        default_file: Path | None = DEFAULT_FILE,
        completed: Callable[[Config], Config] = lambda config: config,
    ) -> None:
        """`config` is the one in effect, that has just been read; `completed` adds what nobody can set."""
        self._arguments = arguments
        self._environment = dict(environment)
        self._config = config
        self._clock = clock
        self._default_file = default_file
        self._completed = completed
        self.status = ConfigStatus(successful=True, last_success=clock.now())

    def reload(self) -> Reloaded:
        """Read the configuration anew; where it cannot be used, the old one stays in effect."""
        try:
            read = self._completed(build_config(self._arguments, self._environment, self._default_file))
        except ConfigError as error:
            self.status = ConfigStatus(successful=False, last_success=self.status.last_success)
            return Reloaded(config=self._config, problem=str(error))
        kept = [each for each in OPTIONS if not each.reloadable and each.of(read) != each.of(self._config)]
        for option in kept:
            read = option.set(read, option.of(self._config))
        self._config = read
        self.status = ConfigStatus(successful=True, last_success=self._clock.now())
        return Reloaded(config=read, kept=tuple(option.key for option in kept))
