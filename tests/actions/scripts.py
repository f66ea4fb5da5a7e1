"""Programs that do what a test wants."""

from pathlib import Path


class Script:
    """A shell script that writes down how it was started, and then does something."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._told = path.with_name(f"{path.name}.told")
        self.does("exit 0")

    def does(self, then: str) -> None:
        """From now on."""
        told = self._told
        self.path.write_text(
            f'#!/bin/sh\n{{ echo "$@"; pwd; umask; id -u; id -g; env; }} >{told}.new; mv {told}.new {told}\n{then}\n'
        )
        self.path.chmod(0o755)

    @property
    def was_started(self) -> bool:
        """At least once."""
        return self._told.exists()

    @property
    def told(self) -> list[str]:
        """Its arguments, directory, umask, UID and GID, then its environment, a line each."""
        return self._told.read_text().splitlines()

    @property
    def environment(self) -> dict[str, str]:
        """Its variables, but for those that the shell itself adds."""
        variables = dict(line.split("=", 1) for line in self.told[5:])
        return {name: value for name, value in variables.items() if name not in ("PWD", "OLDPWD", "SHLVL", "_")}
