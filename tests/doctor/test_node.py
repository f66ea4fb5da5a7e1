"""`doctor` on a node of stand-ins reports each mistake, and nothing else that a correct node does not have."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.collectors.proc import INITIAL_PID_NAMESPACE
from tests import program
from tests.builders import UNIT
from tests.doctor.preflight import CORRECT, Preflight, Report, by_code, preflight
from tests.standin.mps import BIN, MpsStandIn, wait_until
from tests.standin.nvml import CompilerMissingError, Process, fails
from tests.tools import needed, not_here

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: needs root, to run processes of other users")

GPU_IS_LOST, LIB_RM_VERSION_MISMATCH = 15, 18
OTHER_USER = 54321


@pytest.fixture(scope="module")
def node(nvml_libraries: Path) -> Iterator[Preflight]:
    """A correct node. A test that changes it restores it."""
    before = os.umask(0o022)
    try:
        with preflight(nvml_libraries) as made:
            made.mps.start()
            yield made
    except CompilerMissingError as problem:
        not_here(str(problem))
    finally:
        os.umask(before)


@pytest.fixture(scope="module")
def correct(node: Preflight) -> Report:
    with client(node) as pid:
        node.set_processes(Process(pid))
        return node.report()


@pytest.fixture(autouse=True)
def _no_processes(node: Preflight, correct: Report) -> None:
    """Remove what another test has set in the driver."""
    node.set_processes()


@contextlib.contextmanager
def running(*command: str, **options: object) -> Iterator[int]:
    child = subprocess.Popen(command or ("sleep", "600"), **options)  # type: ignore[call-overload]
    try:
        yield child.pid
    finally:
        child.kill()
        child.wait()


@contextlib.contextmanager
def client(node: Preflight, *, uid: int = 0, **variables: str) -> Iterator[int]:
    own = {"CUDA_MPS_PIPE_DIRECTORY": str(node.mps.pipe_directory)}
    with running(env=os.environ | own | variables) as pid:
        node.mps.connect_and_wait(pid, uid)
        yield pid


def new_findings(node: Preflight, correct: Report, *arguments: str, **environment: str) -> dict[str, str]:
    """Return the findings, with their severities, that the correct node does not have."""
    usual = {(each["code"], each["severity"]) for each in correct["findings"]}
    findings = node.report(*arguments, **environment)["findings"]
    return {each["code"]: each["severity"] for each in findings if (each["code"], each["severity"]) not in usual}


def test_a_correct_node_has_only_hints_and_the_open_fifo(correct: Report) -> None:
    created_by_the_daemon = "log_fifo_open"
    assert {each["severity"] for each in correct["findings"] if each["code"] != created_by_the_daemon} <= {"info"}
    assert (correct["exit_code"], correct["unknown"]) == (1, [])


# -- programs ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def without(path: Path) -> Iterator[None]:
    moved = path.with_name("moved")
    path.rename(moved)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        moved.rename(path)


def test_reports_missing_programs_and_one_of_another_version(node: Preflight, correct: Report) -> None:
    variables = program.variable(control_executable="/nowhere/nvidia-cuda-mps-control")
    assert new_findings(node, correct, **variables) == {"mps_program_unusable": "critical"}
    with without(node.bin / "nvidia-cuda-mps-server"):
        assert new_findings(node, correct) == {"mps_program_unusable": "warning"}
    control = node.bin / "nvidia-cuda-mps-control"
    with without(control):
        control.write_text(
            '#!/bin/sh\n[ "$1" = -v ] && echo "CUDA MPS Control binary version: 12040" && exit\n'
            f'exec "{BIN}/nvidia-cuda-mps-control" "$@"\n'
        )
        control.chmod(0o755)
        assert new_findings(node, correct) == {"version_mismatch": "warning"}


# -- GPUs ----------------------------------------------------------------------------------------------------------


def test_reports_settings_and_errors_of_a_gpu(node: Preflight, correct: Report, subtests: pytest.Subtests) -> None:
    upgraded = [fails(name, LIB_RM_VERSION_MISMATCH) for name in ("nvmlInit_v2", "nvmlInitWithFlags")]
    for device, behaviours, expected in [
        (replace(CORRECT, compute_mode=2), (), {"compute_mode": "critical"}),
        (replace(CORRECT, readings={"persistence": 1, "mig": 1}), (), {"mig": "warning"}),
        (replace(CORRECT, readings={"persistence": 0, "mig": 0}), (), {"persistence_off": "info"}),
        (CORRECT, (fails("nvmlDeviceGetMemoryInfo", GPU_IS_LOST),), {"gpu_lost": "critical"}),
        (CORRECT, tuple(upgraded), {"nvml_unusable": "critical"}),
    ]:
        with subtests.test(expected=expected):
            node.set_processes(device=device, behaviours=behaviours)
            assert new_findings(node, correct) == expected


# -- clients -------------------------------------------------------------------------------------------------------


def test_reports_a_process_with_another_pipe_directory(node: Preflight, correct: Report) -> None:
    with running(env=os.environ | {"CUDA_MPS_PIPE_DIRECTORY": "/run/elsewhere"}) as pid:
        node.set_processes(Process(pid, in_mps_list=False))
        report = node.report()
    (finding,) = by_code(report)["process_bypassing"]
    assert "/run/elsewhere" in finding["text"]
    assert str(node.mps.pipe_directory) in finding["steps"][0]["commands"][0]
    assert f"PID {pid} " in finding["facts"][0]
    assert {each["code"] for each in report["findings"]} - set(by_code(correct)) == {"process_bypassing"}


def test_reports_a_process_with_a_private_mount(node: Preflight, correct: Report, subtests: pytest.Subtests) -> None:
    own = {"CUDA_MPS_PIPE_DIRECTORY": str(node.mps.pipe_directory)}
    unshare = unshare_path("--mount")
    for mounted, expected in [
        ("/tmp", {"process_bypassing": "warning"}),
        ("/dev/shm", {"process_bypassing": "warning", "shared_memory_differs": "warning"}),
    ]:
        command = f"mount -t tmpfs none {mounted} && echo && exec sleep 600"
        with (
            subtests.test(mounted=mounted),
            running(unshare, "--mount", "sh", "-c", command, env=os.environ | own) as pid,
        ):
            wait_until(lambda pid=pid: Path(f"/proc/{pid}/comm").read_text() == "sleep\n", "the mount")
            node.set_processes(Process(pid, in_mps_list=False))
            assert new_findings(node, correct) == expected


def test_reports_that_the_exporter_is_in_a_pid_namespace(node: Preflight, correct: Report) -> None:
    own = ("--pid", "--fork", "--mount-proc")
    with client(node) as pid:
        node.set_processes(Process(pid))
        done = subprocess.run(
            [unshare_path(*own), *own, sys.executable, *program.command("doctor", "--config.file=", "--json")],
            env=os.environ | node.environment,
            capture_output=True,
            text=True,
        )
    findings = by_code(json.loads(done.stdout))
    assert done.returncode == 1
    assert set(findings) - set(by_code(correct)) == {"exporter_pid_namespace"}
    assert "Whether a daemon runs is unknown" in findings["exporter_pid_namespace"][0]["text"]


def unshare_path(*kinds: str) -> str:
    """Return the path of unshare(1); skip the test if namespaces cannot be created."""
    unshare = needed("unshare")
    if subprocess.run([unshare, *kinds, "true"]).returncode != 0:
        not_here("namespaces cannot be created")
    return unshare


def test_reports_a_waiting_client_of_another_user(node: Preflight, correct: Report) -> None:
    own = {"CUDA_MPS_PIPE_DIRECTORY": str(node.mps.pipe_directory)}
    with client(node) as pid, running(env=os.environ | own, user=OTHER_USER, group=OTHER_USER) as other:
        node.set_processes(Process(pid))
        node.mps.connect(other, OTHER_USER)
        findings = by_code(node.report())
        node.mps.disconnect(other)
    # The daemon ends the server for the waiting user, a little later. The next test must not list its PID on the GPU.
    wait_until(lambda: node.mps.server_pid is None, "the end of the server")
    assert set(findings) - set(by_code(correct)) == {"clients_waiting"}


def test_reports_a_wrong_variable_of_a_client(node: Preflight, correct: Report, subtests: pytest.Subtests) -> None:
    for name, value, expected in [
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "0", {"thread_percentage_wrong": "critical"}),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "3=1G", {"memory_limit_without_effect": "warning"}),
        # It has a context, so it may have changed the variable since.
        ("CUDA_VISIBLE_DEVICES", "0,2", {}),
    ]:
        with subtests.test(name=name), client(node, **{name: value}) as pid:
            node.set_processes(Process(pid))
            assert new_findings(node, correct) == expected


def test_escapes_hostile_names_of_processes_and_directories(node: Preflight, correct: Report) -> None:
    hostile = "/tmp/\x1b[31m\n$(reboot);<script>\u202e" + "x" * 4000
    directory = Path(node.directory / "\x1b[2J\nPID 1 (innocent)")
    shutil.copy(shutil.which("sleep") or "", directory)
    with running(str(directory), "600", env=os.environ | {"CUDA_MPS_PIPE_DIRECTORY": hostile}) as pid:
        node.set_processes(Process(pid, in_mps_list=False))
        code, output = node.run()
        report = node.report()
    assert code == 1
    assert all(line.isprintable() for line in output.split("\n"))
    assert {each["code"] for each in report["findings"]} - set(by_code(correct)) == {"process_bypassing"}
    assert max(len(each["text"]) for each in report["findings"]) < 1500


# -- directories and logs ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def mode(path: Path, wanted: int) -> Iterator[None]:
    before = path.stat().st_mode
    path.chmod(wanted)
    try:
        yield
    finally:
        path.chmod(before)


def test_reports_a_pipe_directory_with_a_wrong_mode(node: Preflight, correct: Report) -> None:
    for wanted, expected in [(0o700, {"directory_closed": "critical"}), (0o777, {"directory_writable": "warning"})]:
        with mode(node.mps.pipe_directory, wanted):
            assert new_findings(node, correct) == expected


def test_reports_a_wrong_pid_file(node: Preflight, correct: Report) -> None:
    file = node.mps.pipe_directory / "nvidia-cuda-mps-control.pid"
    before = file.read_text()
    file.write_text("1\n")
    try:
        assert new_findings(node, correct) == {"pid_file_wrong": "critical"}
    finally:
        file.write_text(before)


def test_reports_a_renamed_log(node: Preflight, correct: Report) -> None:
    log = node.mps.log_directory / "control.log"
    aside = log.rename(log.with_name("control.log.1"))
    log.touch()
    try:
        assert new_findings(node, correct) == {"log_not_rotated": "warning"}
    finally:
        aside.rename(log)


def test_reports_a_large_log(node: Preflight, correct: Report) -> None:
    log = node.mps.log_directory / "server.log"
    before = log.stat().st_size
    os.truncate(log, 1 << 30)
    try:
        assert new_findings(node, correct) == {"log_not_rotated": "warning"}
    finally:
        os.truncate(log, before)


# -- the exporter itself -------------------------------------------------------------------------------------------


def test_reports_an_unusable_configuration(node: Preflight, correct: Report) -> None:
    file = node.directory / "config.toml"
    for text in ("[log]\nlevl = 'debug'\n", "[web]\nconfig_file = '/nowhere/web.yml'\n"):
        file.write_text(text)
        assert new_findings(node, correct, "--config.file", str(file)) == {"configuration_unusable": "critical"}


def test_reports_mistakes_of_the_options(node: Preflight, correct: Report) -> None:
    assert new_findings(node, correct, "--watchdog.mode=act") == {"acts_without_restart": "critical"}
    assert new_findings(node, correct, "--path.state-directory=/dev/null") == {"history_not_writable": "info"}
    report = node.report(CUDA_MPS_PIPE_DIRECTORY="/run/" + "x" * 90)
    assert "107 bytes" in by_code(report)["configuration_unusable"][0]["text"]
    assert by_code(correct)["kernel_log_closed"][0]["severity"] == "info", "tests cannot read it"


def test_reports_a_private_tmp_of_the_daemons_unit(node: Preflight, correct: Report) -> None:
    systemctl = node.bin / "systemctl"
    systemctl.write_text(f"#!/bin/sh\nprintf 'Id={UNIT}\\nLoadState=loaded\\nPrivateTmp=yes\\n'\n")
    systemctl.chmod(0o755)
    file = node.directory / "config.toml"
    keys = {"pipe_directory": node.mps.pipe_directory, "log_directory": node.mps.log_directory, "unit": UNIT}
    file.write_text("[[daemons]]\n" + "".join(f'{key} = "{value}"\n' for key, value in keys.items()))
    try:
        assert new_findings(node, correct, "--config.file", str(file)) == {"unit_private_tmp": "critical"}
    finally:
        systemctl.unlink()


# -- the daemon ----------------------------------------------------------------------------------------------------


def test_reports_a_wrong_environment_of_a_daemon(node: Preflight, correct: Report) -> None:
    with another(node, {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2G"}) as (_, environment):
        assert new_findings(node, correct, **environment) == {"memory_limit_without_effect": "warning"}
    with another(node, {}, gpus=("GPU-00000000-0000-0000-0000-000000000000",)) as (_, environment):
        assert new_findings(node, correct, **environment) == {"visible_devices_wrong": "critical"}


def test_reports_two_daemons_in_one_directory(node: Preflight, correct: Report) -> None:
    with another(node, {}) as (mps, environment):
        shutil.rmtree(mps.pipe_directory)
        mps.start()
        assert new_findings(node, correct, **environment) == {"two_daemons": "critical"}


def test_reports_a_killed_daemon(node: Preflight, correct: Report) -> None:
    with another(node, {}) as (mps, environment):
        mps.kill()
        expected = {"daemon_down": "critical"}
        if os.stat("/proc/self/ns/pid").st_ino != INITIAL_PID_NAMESPACE:
            expected = {"exporter_pid_namespace": "warning"}
        assert new_findings(node, correct, **environment) == expected


def test_reports_a_log_that_is_not_in_the_log_directory(node: Preflight, correct: Report) -> None:
    with another(node, {}) as (mps, environment):
        mps.kill()
        mps.start(foreground=True)
        report = node.report(**environment)
    assert {each["code"] for each in report["findings"]} - set(by_code(correct)) == {"log_not_followed"}
    assert {"server_crash_loop", "log_not_rotated"} <= set(report["unknown"])


def test_reports_servers_that_exit_before_they_are_ready(node: Preflight, correct: Report) -> None:
    with another(node, {}) as (mps, environment):
        stamp = time.strftime("%Y-%m-%d %H:%M:%S.000")
        texts = [
            text
            for server in range(700_001, 700_007)
            for text in (f"Starting new server {server} for user 1001", f"Server {server} exited with status 1")
        ]
        with (mps.log_directory / "control.log").open("a") as log:
            log.writelines(f"[{stamp} Control {mps.pid:5}] {text}\n" for text in texts)
        report = node.report(**environment)
    (finding,) = by_code(report)["server_crash_loop"]
    assert finding["severity"] == "critical"
    assert "6 in a row, the last one for UID 1001" in finding["text"]
    assert {each["code"] for each in report["findings"]} - set(by_code(correct)) == {"server_crash_loop"}


@contextlib.contextmanager
def another(
    node: Preflight, variables: dict[str, str], gpus: tuple[str, ...] = (CORRECT.uuid,)
) -> Iterator[tuple[MpsStandIn, dict[str, str]]]:
    directory = node.directory / "another"
    directory.mkdir()
    try:
        with MpsStandIn(directory, variables=variables, gpus=gpus) as mps:
            mps.start()
            node.nvml.write([CORRECT])
            yield (
                mps,
                {
                    "CUDA_MPS_PIPE_DIRECTORY": str(mps.pipe_directory),
                    "CUDA_MPS_LOG_DIRECTORY": str(mps.log_directory),
                },
            )
    finally:
        shutil.rmtree(directory)
