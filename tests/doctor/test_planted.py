"""`doctor` on a node of stand-ins: each mistake is planted and found, and nothing else that was not there before."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.doctor.facts import INITIAL_PID_NAMESPACE
from tests import program
from tests.builders import UNIT
from tests.doctor.preflight import HEALTHY, Preflight, Told, by_id, preflight
from tests.standin.mps import BIN, MpsStandIn
from tests.standin.nvml import CompilerMissingError, Process, fails
from tests.tools import needed, not_here

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: needs root, to be other users")

GPU_IS_LOST, LIB_RM_VERSION_MISMATCH = 15, 18
OTHER_USER = 54321


@pytest.fixture(scope="module")
def node(nvml_libraries: Path) -> Iterator[Preflight]:
    """A healthy node; whoever spoils it mends it."""
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
def well(node: Preflight) -> Told:
    """What is told of the healthy node, with one client."""
    with client(node) as pid:
        node.see(Process(pid))
        return node.told()


@pytest.fixture(autouse=True)
def _healthy_at_first(node: Preflight, well: Told) -> None:
    """What another test has planted in the driver is gone."""
    node.see()


@contextlib.contextmanager
def running(*words: str, **options: object) -> Iterator[int]:
    """A process."""
    child = subprocess.Popen(words or ("sleep", "600"), **options)  # type: ignore[call-overload]
    try:
        yield child.pid
    finally:
        child.kill()
        child.wait()


@contextlib.contextmanager
def client(node: Preflight, *, uid: int = 0, **variables: str) -> Iterator[int]:
    """A client of the daemon, which has these variables too."""
    own = {"CUDA_MPS_PIPE_DIRECTORY": str(node.mps.pipe_directory)}
    with running(env=os.environ | own | variables) as pid:
        node.mps.connect_and_wait(pid, uid)
        yield pid


def found(node: Preflight, well: Told, *arguments: str, **environment: str) -> dict[str, str]:
    """The findings, each with its severity, that the healthy node has not."""
    usual = {(each["id"], each["severity"]) for each in well["findings"]}
    told = node.told(*arguments, **environment)["findings"]
    return {each["id"]: each["severity"] for each in told if (each["id"], each["severity"]) not in usual}


def test_the_healthy_node_has_nothing_above_advice(well: Told) -> None:
    made_so_by_the_daemon = "log-fifo-open"
    assert {each["severity"] for each in well["findings"] if each["id"] != made_so_by_the_daemon} <= {"advice"}
    assert (well["exit_code"], well["unknown"]) == (1, [])


# -- programs ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def without(path: Path) -> Iterator[None]:
    aside = path.with_name("aside")
    path.rename(aside)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        aside.rename(path)


def test_the_control_program_is_missing(node: Preflight, well: Told) -> None:
    told = found(node, well, **program.variable(control_executable="/nowhere/nvidia-cuda-mps-control"))
    assert told == {"control-program-missing": "error"}


def test_the_server_program_is_missing(node: Preflight, well: Told) -> None:
    with without(node.bin / "nvidia-cuda-mps-server"):
        assert found(node, well) == {"server-program-missing": "warning"}


def test_the_control_program_is_of_another_version(node: Preflight, well: Told) -> None:
    control = node.bin / "nvidia-cuda-mps-control"
    with without(control):
        control.write_text(
            '#!/bin/sh\n[ "$1" = -v ] && echo "CUDA MPS Control binary version: 12040" && exit\n'
            f'exec {BIN}/nvidia-cuda-mps-control "$@"\n'
        )
        control.chmod(0o755)
        assert found(node, well) == {"version-mismatch": "warning"}


# -- GPUs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "told"),
    [
        (replace(HEALTHY, compute_mode=0), {"compute-mode-default": "advice"}),
        (replace(HEALTHY, compute_mode=2), {"compute-mode-prohibited": "error"}),
        (replace(HEALTHY, readings={"persistence": 1, "mig": 1}), {"mig": "warning"}),
        (replace(HEALTHY, compute_capability=(6, 1)), {"pre-volta": "warning"}),
        (replace(HEALTHY, readings={"persistence": 0, "mig": 0}), {"persistence-off": "advice"}),
    ],
    ids=["default", "prohibited", "mig", "pre-volta", "persistence off"],
)
def test_a_gpu_is_not_as_it_should_be(node: Preflight, well: Told, device: object, told: dict[str, str]) -> None:
    node.see(device=device)  # type: ignore[arg-type]
    assert found(node, well) == told


def test_a_gpu_cannot_be_read(node: Preflight, well: Told) -> None:
    node.see(behaviours=(fails("nvmlDeviceGetMemoryInfo", GPU_IS_LOST),))
    assert found(node, well) == {"gpu-unreadable": "error"}


def test_the_driver_was_upgraded_and_not_rebooted(node: Preflight, well: Told) -> None:
    node.see(
        behaviours=(fails("nvmlInit_v2", LIB_RM_VERSION_MISMATCH), fails("nvmlInitWithFlags", LIB_RM_VERSION_MISMATCH))
    )
    assert found(node, well) == {"driver-mismatch": "error"}


# -- clients -------------------------------------------------------------------------------------------------------


def test_a_client_looks_in_another_directory(node: Preflight, well: Told) -> None:
    with running(env=os.environ | {"CUDA_MPS_PIPE_DIRECTORY": "/run/elsewhere"}) as pid:
        node.see(Process(pid, in_mps_list=False))
        told = node.told()
    (finding,) = by_id(told)["pipe-directory-differs"]
    assert "/run/elsewhere" in finding["what"]
    assert str(node.mps.pipe_directory) in finding["commands"][0]
    assert f"PID {pid} " in finding["where"][0]
    assert {each["id"] for each in told["findings"]} - set(by_id(well)) == {"pipe-directory-differs"}


@pytest.mark.parametrize(
    ("mounted", "told"),
    [
        ("/tmp", {"private-tmp": "error"}),
        ("/dev/shm", {"process-bypassing": "warning", "shared-memory-differs": "warning"}),
    ],
    ids=["/tmp", "/dev/shm"],
)
def test_a_client_has_a_directory_of_its_own(node: Preflight, well: Told, mounted: str, told: dict[str, str]) -> None:
    own = {"CUDA_MPS_PIPE_DIRECTORY": str(node.mps.pipe_directory)}
    words = (namespaces("--mount"), "--mount", "sh", "-c", f"mount -t tmpfs none {mounted} && echo && exec sleep 600")
    child = subprocess.Popen(words, env=os.environ | own, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        node.see(Process(child.pid, in_mps_list=False))
        assert found(node, well) == told
    finally:
        child.kill()
        child.communicate()


def test_the_exporter_is_in_a_pid_namespace_of_its_own(node: Preflight, well: Told) -> None:
    own = ("--pid", "--fork", "--mount-proc")
    with client(node) as pid:
        node.see(Process(pid))
        done = subprocess.run(
            [namespaces(*own), *own, sys.executable, *program.command("doctor", "--config.file=", "--json")],
            env=os.environ | node.environment,
            capture_output=True,
            text=True,
        )
    told = by_id(json.loads(done.stdout))
    assert done.returncode == 1
    assert set(told) - set(by_id(well)) == {"exporter-pid-namespace"}
    assert "Whether a daemon runs is unknown." in told["exporter-pid-namespace"][0]["what"]


def namespaces(*kinds: str) -> str:
    """The program that makes them."""
    unshare = needed("unshare")
    if subprocess.run([unshare, *kinds, "true"]).returncode != 0:
        not_here("namespaces may not be made")
    return unshare


def test_a_process_runs_beside_mps_though_it_would_find_the_daemon(node: Preflight, well: Told) -> None:
    with running(env=os.environ | {"CUDA_MPS_PIPE_DIRECTORY": str(node.mps.pipe_directory)}) as pid:
        node.see(Process(pid, in_mps_list=False))
        assert found(node, well) == {"process-bypassing": "warning"}


def test_another_users_client_waits(node: Preflight, well: Told) -> None:
    own = {"CUDA_MPS_PIPE_DIRECTORY": str(node.mps.pipe_directory)}
    with client(node) as pid, running(env=os.environ | own, user=OTHER_USER, group=OTHER_USER) as other:
        node.see(Process(pid))
        node.mps.connect(other, OTHER_USER)
        told = by_id(node.told())
        node.mps.disconnect(other)
    assert [place.split()[1] for place in told["users-wait"][0]["where"]] == [str(other)]
    assert set(told) - set(by_id(well)) == {"users-wait"}


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "0"}, {"thread-percentage-wrong": "error"}),
        ({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=900G"}, {"memory-limit-beyond-device": "warning"}),
        ({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "3=1G"}, {"memory-limit-without-device": "error"}),
        ({"CUDA_VISIBLE_DEVICES": "0,2"}, {"gpu-not-visible": "warning"}),
    ],
    ids=["no threads", "more than the GPU has", "a device that is not there", "a GPU that the daemon has not"],
)
def test_a_client_asks_for_what_is_not(
    node: Preflight, well: Told, variables: dict[str, str], told: dict[str, str]
) -> None:
    with client(node, **variables) as pid:
        node.see(Process(pid))
        assert found(node, well) == told


def test_a_client_may_call_itself_and_its_directory_what_it_likes(node: Preflight, well: Told) -> None:
    hostile = "/tmp/\x1b[31m\n$(reboot);<script>\u202e" + "x" * 4000
    directory = Path(node.directory / "\x1b[2J\nPID 1 (innocent)")
    shutil.copy(shutil.which("sleep") or "", directory)
    with running(str(directory), "600", env=os.environ | {"CUDA_MPS_PIPE_DIRECTORY": hostile}) as pid:
        node.see(Process(pid, in_mps_list=False))
        code, said = node.run()
        told = node.told()
    assert code == 2
    assert all(line.isprintable() for line in said.split("\n"))
    assert {each["id"] for each in told["findings"]} - set(by_id(well)) == {
        "pipe-directory-differs",
        "socket-path-too-long",
    }
    assert max(len(each["what"]) for each in told["findings"]) < 1500


# -- directories and logs ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def mode(path: Path, wanted: int) -> Iterator[None]:
    before = path.stat().st_mode
    path.chmod(wanted)
    try:
        yield
    finally:
        path.chmod(before)


@pytest.mark.parametrize(
    ("wanted", "told"),
    [(0o700, {"directory-closed": "error"}), (0o777, {"directory-writable": "warning"})],
    ids=["closed", "open to all"],
)
def test_a_pipe_directory_has_the_wrong_rights(node: Preflight, well: Told, wanted: int, told: dict[str, str]) -> None:
    node.see()
    with mode(node.mps.pipe_directory, wanted):
        assert found(node, well) == told


def test_a_pid_file_is_spoilt(node: Preflight, well: Told) -> None:
    node.see()
    file = node.mps.pipe_directory / "nvidia-cuda-mps-control.pid"
    before = file.read_text()
    file.write_text("1\n")
    try:
        assert found(node, well) == {"pid-file-wrong": "error"}
    finally:
        file.write_text(before)


def test_a_socket_has_too_long_a_path(node: Preflight, well: Told) -> None:
    node.see()
    told = node.told(CUDA_MPS_PIPE_DIRECTORY="/run/" + "x" * 90)
    assert "107 bytes" in by_id(told)["configuration-unusable"][0]["what"]


def test_logs_are_rotated_by_renaming_them(node: Preflight, well: Told) -> None:
    node.see()
    log = node.mps.log_directory / "control.log"
    aside = log.rename(log.with_name("control.log.1"))
    log.touch()
    try:
        assert found(node, well) == {"log-renamed": "warning"}
    finally:
        aside.rename(log)


def test_a_log_is_large(node: Preflight, well: Told) -> None:
    node.see()
    log = node.mps.log_directory / "server.log"
    before = log.stat().st_size
    os.truncate(log, 1 << 30)
    try:
        assert found(node, well) == {"log-not-rotated": "warning"}
    finally:
        os.truncate(log, before)


# -- the exporter itself -------------------------------------------------------------------------------------------


def test_a_port_is_taken(node: Preflight, well: Told) -> None:
    node.see()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert found(node, well, f"--web.listen-address=127.0.0.1:{port}") == {"port-taken": "error"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[log]\nlevl = 'debug'\n", {"configuration-unusable": "error"}),
        ("[web]\nconfig_file = '/nowhere/web.yml'\n", {"web-config-unusable": "error"}),
    ],
    ids=["a typo", "no web config"],
)
def test_a_configuration_cannot_be_used(node: Preflight, well: Told, text: str, told: dict[str, str]) -> None:
    node.see()
    file = node.directory / "config.toml"
    file.write_text(text)
    assert found(node, well, "--config.file", str(file)) == told


def test_the_watchdog_is_to_act_and_cannot(node: Preflight, well: Told) -> None:
    node.see()
    told = found(node, well, "--watchdog.mode=act")
    assert told == {"acts-without-restart": "error"}


def test_the_kernel_log_cannot_be_opened(node: Preflight, well: Told) -> None:
    node.see()
    assert by_id(well)["kernel-log-closed"][0]["severity"] == "advice", "the tests keep it closed"


def test_the_history_cannot_be_written(node: Preflight, well: Told) -> None:
    node.see()
    assert found(node, well, "--path.state-directory=/dev/null") == {"history-not-writable": "advice"}


def test_the_daemons_unit_has_a_tmp_of_its_own(node: Preflight, well: Told) -> None:
    node.see()
    systemctl = node.bin / "systemctl"
    systemctl.write_text(f"#!/bin/sh\nprintf 'Id={UNIT}\\nLoadState=loaded\\nPrivateTmp=yes\\n'\n")
    systemctl.chmod(0o755)
    file = node.directory / "config.toml"
    keys = {"pipe_directory": node.mps.pipe_directory, "log_directory": node.mps.log_directory, "unit": UNIT}
    file.write_text("[[daemons]]\n" + "".join(f'{key} = "{value}"\n' for key, value in keys.items()))
    try:
        assert found(node, well, "--config.file", str(file)) == {"daemon-private-tmp": "error"}
    finally:
        systemctl.unlink()


# -- the daemon ----------------------------------------------------------------------------------------------------


def test_a_daemon_has_a_memory_limit_where_it_does_nothing(node: Preflight, well: Told) -> None:
    with another(node, {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2G"}) as (_, environment):
        assert found(node, well, **environment) == {"memory-limit-in-environment": "warning"}


def test_a_daemon_names_a_gpu_that_is_not_there(node: Preflight, well: Told) -> None:
    stray = "GPU-00000000-0000-0000-0000-000000000000"
    with another(node, {}, gpus=(stray,)) as (_, environment):
        assert found(node, well, **environment) == {"gpu-not-there": "error"}


def test_two_daemons_run_in_one_directory(node: Preflight, well: Told) -> None:
    with another(node, {}) as (mps, environment):
        shutil.rmtree(mps.pipe_directory)
        mps.start()
        assert found(node, well, **environment) == {"two-daemons": "error"}


def test_a_daemon_was_killed(node: Preflight, well: Told) -> None:
    with another(node, {}) as (mps, environment):
        mps.kill()
        told = {"daemon-absent": "error", "stale-pid-file": "warning"}
        if os.stat("/proc/self/ns/pid").st_ino != INITIAL_PID_NAMESPACE:
            told = {"exporter-pid-namespace": "warning"}
        assert found(node, well, **environment) == told


@contextlib.contextmanager
def another(
    node: Preflight, variables: dict[str, str], gpus: tuple[str, ...] = (HEALTHY.uuid,)
) -> Iterator[tuple[MpsStandIn, dict[str, str]]]:
    """Another daemon, and what makes `doctor` look at that one."""
    directory = node.directory / "another"
    directory.mkdir()
    try:
        with MpsStandIn(directory, variables=variables, gpus=gpus) as mps:
            mps.start()
            node.nvml.write([HEALTHY])
            yield (
                mps,
                {
                    "CUDA_MPS_PIPE_DIRECTORY": str(mps.pipe_directory),
                    "CUDA_MPS_LOG_DIRECTORY": str(mps.log_directory),
                },
            )
    finally:
        shutil.rmtree(directory)
