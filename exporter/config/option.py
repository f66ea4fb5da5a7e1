"""An option: one thing that can be set, and what it is called in flags, variables and the file."""

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from exporter.config.kinds import Kind
from exporter.config.settings import Config

PREFIX = "CUDA_MPS_EXPORTER_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One thing that can be set: `attribute` is its place in Config, `key` its place in the file, for `commands`.

    What is not `reloadable` stays as it was at the start.
    """

    key: str
    attribute: str
    kind: Kind
    help: str
    flag: str = ""
    commands: tuple[str, ...]
    reloadable: bool = True

    @property
    def name(self) -> str:
        """The flag's name: the key, with the file's units left out."""
        return self.flag or "--" + self.key.removesuffix("_seconds").replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable: the flag in capitals."""
        return PREFIX + self.name.lstrip("-").replace("-", "_").replace(".", "_").upper()

    @property
    def section(self) -> str:
        """The section of the file."""
        return self.key.partition(".")[0]

    @property
    def key_in_section(self) -> str:
        """The key, within its section."""
        return self.key.partition(".")[2]

    def of(self, config: Config) -> Any:
        """Its value in a configuration."""
        return attrgetter(self.attribute)(config)

    def set(self, config: Config, value: Any) -> Config:
        """The configuration with another value of it."""
        outer, _, inner = self.attribute.rpartition(".")
        if outer:
            value = replace(getattr(config, outer), **{inner: value})
        return replace(config, **{outer or inner: value})
