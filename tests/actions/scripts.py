"""Shell scripts in place of programs."""

from pathlib import Path


class Script:
    """A shell script that records how it was started, and then runs commands."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._record = path.with_name(f"{path.name}.reported")
        self.does("exit 0")

    def does(self, then: str) -> None:
        to = self._record
        record = f'{{ echo "$@"; pwd; umask; id -u; id -g; env; }} >{to}.new; mv {to}.new {to}'
        self.path.write_text(f"#!/bin/sh\n{record}\n{then}\n")
        self.path.chmod(0o755)

    @property
    def was_started(self) -> bool:
        return self._record.exists()

    @property
    def reported(self) -> list[str]:
        """Its arguments, directory, umask, UID and GID, then its environment, a line each."""
        return self._record.read_text().splitlines()

    @property
    def environment(self) -> dict[str, str]:
        variables = dict(line.split("=", 1) for line in self.reported[5:])
        return {name: value for name, value in variables.items() if name not in ("PWD", "OLDPWD", "SHLVL", "_")}
