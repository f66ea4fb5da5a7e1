"""The drop-in that restricts the fifo of a daemon's logs, run as systemd runs it, and the check of that fifo."""

import os
import re
import stat
import subprocess
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.collectors.proc import Proc
from exporter.doctor import examine
from exporter.doctor.readers import read_directory
from exporter.model.daemon import Daemon
from exporter.report.document_parts import Severity
from tests.builders import UNIT
from tests.doctor.healthy import DAEMON, daemon, directory, healthy
from tests.status import commands_of
from tests.tools import needed

SYSTEMD = Path(__file__).parents[2] / "systemd"
DROP_IN = SYSTEMD / "nvidia-cuda-mps.service.d" / "restrict-log.conf"
CONTROL = "/usr/bin/nvidia-cuda-mps-control"

ANSWERS_AT_THE_THIRD = """#!/bin/sh
cat >/dev/null
echo >> "$0.asked"
test "$(wc -l < "$0.asked")" -ge 3 || exit 1
rm -f "$CUDA_MPS_PIPE_DIRECTORY/log"
mkfifo -m 0777 "$CUDA_MPS_PIPE_DIRECTORY/log"
"""
"""A daemon that starts beside the fifo of a killed one."""

NEVER_ANSWERS = "#!/bin/sh\necho >> $0.asked\nexit 1\n"


def run_drop_in(directory: Path, program: str) -> int:
    """Run the drop-in's command with a stand-in of the control program. Return its exit code."""
    control = directory / "control-program"
    control.write_text(program)
    control.chmod(0o755)
    text = DROP_IN.read_text().replace("\\\n", "").replace("$$", "$").replace(CONTROL, str(control))
    (command,) = re.findall(r"^ExecStartPost=-/bin/sh -c '(.*)'$", text, re.MULTILINE)
    command = command.replace("sleep 0.1", "true")
    variables = {"CUDA_MPS_PIPE_DIRECTORY": str(directory), "PATH": os.environ["PATH"]}
    return subprocess.run(["/bin/sh", "-c", command], env=variables, check=False, timeout=120).returncode


def fifo(directory: Path) -> Path:
    """Create the fifo with the daemon's mode: open to all users."""
    path = directory / "log"
    os.mkfifo(path)
    path.chmod(0o777)
    return path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_drop_in_restricts_the_fifo_of_the_new_daemon(tmp_path: Path) -> None:
    old = fifo(tmp_path)
    assert run_drop_in(tmp_path, ANSWERS_AT_THE_THIRD) == 0
    assert mode(old) == 0o600


def test_drop_in_restricts_the_fifo_of_a_daemon_that_does_not_answer(tmp_path: Path) -> None:
    path = fifo(tmp_path)
    assert run_drop_in(tmp_path, NEVER_ANSWERS) == 0
    assert mode(path) == 0o600
    assert len((tmp_path / "control-program.asked").read_text().splitlines()) == 20


def test_drop_in_changes_only_a_fifo(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    (tmp_path / "log").chmod(0o644)
    assert run_drop_in(tmp_path, "#!/bin/sh\n") != 0
    assert mode(tmp_path / "log") == 0o644


@pytest.mark.parametrize("name", ["nvidia-cuda-mps.service", "nvidia-cuda-mps@.service"])
def test_systemd_accepts_the_drop_in(tmp_path: Path, name: str) -> None:
    unit = tmp_path / name.replace("@.", "@0.")
    unit.write_text((SYSTEMD / name).read_text())
    (tmp_path / f"{unit.name}.d").mkdir()
    (tmp_path / f"{unit.name}.d" / DROP_IN.name).write_text(DROP_IN.read_text())
    done = subprocess.run([needed("systemd-analyze"), "verify", unit], capture_output=True, text=True, check=False)
    assert [line for line in (done.stdout + done.stderr).splitlines() if "nvidia-cuda-mps" in line] == []


# -- doctor --------------------------------------------------------------------------------------------------------

PROC = Proc(Path("/proc"), SystemClock())


def read(path: Path, name: str = "d") -> object:
    return read_directory(Daemon(name=name, pipe_directory=str(path), log_directory=""), None, PROC)


def test_ignores_a_link_in_place_of_the_fifo(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to("/dev/null")
    assert read(tmp_path).log_fifo_mode is None


def test_returns_a_problem_if_the_fifo_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.stat

    def refuse(path: object, **options: object) -> os.stat_result:
        if path == "log":
            raise PermissionError(13, "Permission denied")
        return real(path, **options)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(os, "stat", refuse)
    assert "Permission denied" in (read(tmp_path).problem or "")


def findings(**changes: object) -> list[tuple[Severity, str, tuple[str, ...]]]:
    report = examine(healthy(**changes))
    return [(f.severity, f.remedy, commands_of(f)) for f in report.findings if f.problem.code == "log_fifo_open"]


OPEN = {DAEMON: directory(log_fifo_mode=0o777)}


def test_shows_the_commands_that_restrict_the_fifo() -> None:
    ((severity, fix, commands),) = findings(directories=OPEN)
    assert severity is Severity.WARNING
    assert "servers of other users" in fix
    now, install, reload = commands
    assert (now, reload) == (f"chmod 0600 {DAEMON}/log", "systemctl daemon-reload")
    assert install.startswith(f"install -Dm 644 -t /etc/systemd/system/{UNIT}.d /opt/cuda-mps-exporter/share/")
    assert install.endswith(f"/systemd/{DROP_IN.relative_to(SYSTEMD)}")


def test_runs_the_command_as_the_user_of_the_daemon_and_quotes_the_path() -> None:
    """The user could replace the fifo with a link to a file of root."""
    hostile = {DAEMON: directory(path="/run/a b; reboot", log_fifo_mode=0o777)}
    ((_, _, commands),) = findings(directories=hostile, daemons=(daemon(uid=1000, user="alice"),))
    assert commands[0] == "sudo -u '#1000' chmod 0600 '/run/a b; reboot/log'"


def test_omits_the_warning_for_a_daemon_with_one_server_for_all_users(subtests: pytest.Subtests) -> None:
    for option in ["-M", "-multiuser-server", "--multiuser-server", "-m", "--multiuser"]:
        with subtests.test(option=option):
            ((_, fix, _),) = findings(directories=OPEN, daemons=(daemon(arguments=("-d", option)),))
            assert "log almost nothing" not in fix


def test_reports_no_fifo_that_other_users_cannot_open() -> None:
    for changes in ({"log_fifo_mode": 0o600}, {"log_fifo_mode": 0o777, "closed": "/run"}, {}):
        assert findings(directories={DAEMON: directory(**changes)}) == []
