"""What `systemctl show` says of systemd units: `Key=value` lines, with a blank line between units (tried: 252)."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

PROPERTIES = ("Id", "UnitFileState", "ExecStart", "Environment", "EnvironmentFiles", "User")

_ENABLED = ("enabled", "enabled-runtime")
_COMMAND = re.compile(r"\{ path=[^;]* ; argv\[\]=(.*) ; ignore_errors=(?:yes|no) ; .*\}")
_FILE = re.compile(r"(.+) \(ignore_errors=(?:yes|no)\)")
_DAEMON = re.compile(r"(?:^|[\s'\"/;&|(])nvidia-cuda-mps-control((?:[ \t]+[^\s;&|'\")]+)*)")
_DAEMON_FLAGS = {"-d", "-f"}
_ASSIGNED = r"(?:^|[\s'\";&|(]){}=(\"[^\"]*\"|'[^']*'|[^\s;&|'\")]*)"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitProperties:
    """One unit. `commands` are those of ExecStart=, their arguments joined by blanks, as systemd shows them.

    `user` is its User=, by name or number; empty for root.
    """

    name: str
    enabled: bool
    commands: tuple[str, ...]
    environment: Mapping[str, str]
    environment_files: tuple[str, ...]
    user: str = ""

    @property
    def daemon_command(self) -> str | None:
        """The command that starts a control daemon (`-d` or `-f`), also through a shell or env; None: none does."""
        return next((command for command in self.commands if _starts_daemon(command)), None)

    @property
    def daemon_in_foreground(self) -> bool:
        """Whether that daemon writes its logs to stdout."""
        return re.search(r"\s-f\b", self.daemon_command or "") is not None

    @property
    def daemon_stdout_kept(self) -> bool:
        """Whether that daemon's stdout is a file, as nvidia-cuda-mps.service has it, and so not the journal."""
        return re.search(r">>\s*\S*/stdout\.log\b", self.daemon_command or "") is not None

    def assigned(self, variable: str) -> str | None:
        """What the daemon's command itself sets a variable to, as `env A=b daemon -f` and `sh -c "A=b daemon"` do."""
        found = re.findall(_ASSIGNED.format(re.escape(variable)), self.daemon_command or "")
        return str(found[-1]).strip("'\"") if found else None


def parse_units(text: str) -> Iterator[UnitProperties]:
    """The units in the output of `systemctl show`; what has no name is none."""
    for block in text.split("\n\n"):
        values: dict[str, list[str]] = {}
        for line in block.split("\n"):
            key, equals, value = line.partition("=")
            if equals:
                values.setdefault(key, []).append(value)
        name = values.get("Id", [""])[0]
        if name:
            yield _unit(name, values)


def _unit(name: str, values: Mapping[str, list[str]]) -> UnitProperties:
    commands = (_COMMAND.fullmatch(value) for value in values.get("ExecStart", ()))
    files = (_FILE.fullmatch(value) for value in values.get("EnvironmentFiles", ()))
    return UnitProperties(
        name=name,
        enabled=values.get("UnitFileState", [""])[0] in _ENABLED,
        commands=tuple(each[1] for each in commands if each is not None),
        environment=_assignments(" ".join(values.get("Environment", ()))),
        environment_files=tuple(each[1] for each in files if each is not None),
        user=values.get("User", [""])[0],
    )


def _assignments(text: str) -> Mapping[str, str]:
    """`A=b "C=d e"`: each whole assignment is quoted where it has to be."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    pairs = (word.partition("=") for word in words)
    return {name: value for name, equals, value in pairs if name and equals}


def _starts_daemon(command: str) -> bool:
    """Not one that only gives a command to a daemon, as `echo quit | nvidia-cuda-mps-control` does."""
    return any(_DAEMON_FLAGS & set(each.split()) for each in _DAEMON.findall(command))
