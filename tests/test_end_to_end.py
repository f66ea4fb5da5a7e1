"""The program as a user runs it, with stand-ins for MPS and NVML."""

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from exporter.recording import FORMAT
from tests import program
from tests.builders import UNIT
from tests.collectors.test_units import FakeSystemctl
from tests.conftest import Starter
from tests.eventually import PATIENCE_SECONDS, eventually, until
from tests.exporter_process import (
    GPU,
    UNUSED_PID,
    Exporter,
    Serve,
    control_processes,
    fast_command,
    on_the_gpu,
    run,
    run_python,
)
from tests.standin.mps import MpsStandIn
from tests.standin.nvml import MEBIBYTE, NOT_SUPPORTED, Device, NvmlStandIn, fails, hangs
from tests.tools import needed


def three_clients(mps: MpsStandIn, nvml: NvmlStandIn, start: Starter) -> dict[int, int]:
    """Three real processes, connected, and their MiB."""
    clients = {start().pid: mebibytes for mebibytes in (1540, 2564, 4612)}
    for pid in clients:
        mps.connect_and_wait(pid)
    nvml.write([on_the_gpu(clients, mps)])
    return clients


def serve_up(mps: MpsStandIn, serve: Serve) -> Exporter:
    """Start a daemon, and an exporter that shows it as up."""
    mps.start()
    exporter = serve()
    exporter.is_in_state("up")
    return exporter


# -- clients -------------------------------------------------------------------------------------------------------


def test_reports_three_clients_and_a_bypassing_process(
    mps: MpsStandIn, nvml: NvmlStandIn, serve: Serve, start: Starter
) -> None:
    mps.start()
    clients = three_clients(mps, nvml, start)
    exporter = serve()
    exporter.shows(3, "cuda_mps_client_info", user=psutil.Process().username(), command="sleep")
    exporter.shows(sum(clients.values()) * MEBIBYTE, "cuda_mps_client_memory_used_bytes")

    who = {labels["client"]: int(labels["pid"]) for labels, _ in exporter.samples("cuda_mps_client_info")}
    used = exporter.samples("cuda_mps_client_memory_used_bytes", gpu=GPU, daemon=str(mps.pipe_directory))
    assert {who[labels["client"]]: value / MEBIBYTE for labels, value in used} == clients
    assert exporter.value("cuda_mps_server_clients", server=str(mps.server_pid)) == 3
    assert exporter.value("cuda_mps_server_clients_limit") == 48
    assert exporter.value("cuda_mps_server_state", state="active") == exporter.value("cuda_mps_server_state") == 1
    assert exporter.value("cuda_mps_daemon_up") == 1
    assert exporter.value("cuda_mps_daemon_info", version="13000", expected="true") == 1
    assert exporter.value("cuda_mps_clients_connected_total") == 3
    exporter.shows(0, "cuda_mps_bypassing_processes")
    assert exporter.value("cuda_mps_exporter_log_lines_unrecognized_total") in (None, 0)

    beside = start()
    nvml.write([on_the_gpu(clients, mps, beside.pid)])
    exporter.shows(1, "cuda_mps_bypassing_processes", gpu=GPU)
    assert [event["pid"] for event in exporter.events("process_bypassing")] == [beside.pid]


def test_a_gpu_without_memory_of_its_own_is_no_problem(
    mps: MpsStandIn, nvml: NvmlStandIn, serve: Serve, environment: dict[str, str], start: Starter
) -> None:
    """NVML has the memory of the processes of a GB10, but none of the GPU."""
    mps.start()
    clients = three_clients(mps, nvml, start)
    spark = replace(on_the_gpu(clients, mps), name="NVIDIA GB10", compute_capability=(12, 1))
    nvml.write([spark], [fails("nvmlDeviceGetMemoryInfo", NOT_SUPPORTED)])
    exporter = serve()
    exporter.shows(sum(clients.values()) * MEBIBYTE, "cuda_mps_client_memory_used_bytes")

    assert exporter.value("cuda_mps_exporter_source_up", source="nvml") == 1
    assert exporter.value("cuda_mps_gpu_memory_total_bytes") is None
    assert exporter.samples("cuda_mps_exporter_source_problem_info", source="nvml") == []
    assert exporter.value("cuda_mps_gpu_clients_fit", bound="memory") is None
    (gpu,) = exporter.page("/api/v1/status")["data"]["gpus"]
    assert (gpu["unified_memory"], gpu.get("problem")) == (True, None)
    assert "unknown by memory, which the GPU and the system share" in run(environment, "status").stdout


def test_reports_clients_also_after_a_truncation_of_the_logs(mps: MpsStandIn, serve: Serve, start: Starter) -> None:
    exporter = serve_up(mps, serve)
    client = start()
    mps.connect_and_wait(client.pid)
    exporter.shows(1, "cuda_mps_client_info", pid=str(client.pid), command="sleep")

    for name in ("control.log", "server.log"):
        log = mps.log_directory / name
        (mps.log_directory / f"{name}.1").write_bytes(log.read_bytes())
        os.truncate(log, 0)
    mps.connect_and_wait(UNUSED_PID)
    exporter.shows(2, "cuda_mps_server_clients")
    assert exporter.value("cuda_mps_clients_connected_total") == 2

    client.kill()
    exporter.shows(None, "cuda_mps_client_info", pid=str(client.pid))
    assert exporter.value("cuda_mps_clients_disconnected_total", reason="exit") == 1
    assert exporter.value("cuda_mps_server_clients") == 1


def test_reports_16_refused_clients_of_64(mps: MpsStandIn, serve: Serve) -> None:
    exporter = serve_up(mps, serve)
    for pid in range(UNUSED_PID, UNUSED_PID + 64):
        mps.connect(pid)

    exporter.shows(48, "cuda_mps_server_clients")
    exporter.shows(16, "cuda_mps_clients_refused_total", reason="limit")
    assert exporter.value("cuda_mps_clients_connected_total") == 48
    assert exporter.value("cuda_mps_clients_refused_total") == 16


def test_reports_a_fault_and_its_recovery(mps: MpsStandIn, serve: Serve) -> None:
    mps.start()
    for pid in (UNUSED_PID, UNUSED_PID + 1):
        mps.connect_and_wait(pid)
    exporter = serve()
    exporter.shows(2, "cuda_mps_server_clients")
    mps.fault(UNUSED_PID)
    exporter.shows(1, "cuda_mps_server_state", state="fault")
    mps.connect(UNUSED_PID + 2)
    exporter.shows(1, "cuda_mps_clients_refused_total", reason="fault")

    for pid in (UNUSED_PID, UNUSED_PID + 1):
        mps.disconnect(pid)
    exporter.shows(1, "cuda_mps_server_state", state="active")
    exporter.shows(0, "cuda_mps_server_clients")
    assert [event["state"] for event in exporter.events("server_state")] == ["active", "fault", "active"]


# -- the daemon's life ---------------------------------------------------------------------------------------------


def test_counts_a_killed_daemon_as_one_loss_and_one_that_was_down_as_none(mps: MpsStandIn, serve: Serve) -> None:
    exporter = serve()
    exporter.shows(0, "cuda_mps_daemon_up", daemon=str(mps.pipe_directory))
    exporter.is_in_state("down")
    assert exporter.value("cuda_mps_daemon_losses_total") == 0

    mps.start()
    mps.connect_and_wait(UNUSED_PID)
    exporter.shows(1, "cuda_mps_server_clients")
    mps.kill()
    exporter.shows(0, "cuda_mps_daemon_up")
    exporter.shows(1, "cuda_mps_daemon_losses_total", reason="died")
    exporter.is_in_state("down")
    disconnected = exporter.samples("cuda_mps_clients_disconnected_total")
    assert {labels["reason"]: count for labels, count in disconnected if count} == {"daemon_gone": 1}
    assert exporter.value("cuda_mps_server_clients") is None

    mps.start()
    exporter.shows(1, "cuda_mps_daemon_up")
    exporter.is_in_state("up")
    assert exporter.value("cuda_mps_daemon_losses_total") == 1
    started = psutil.Process(mps.pid).create_time()
    # psutil's time of the boot has whole seconds.
    assert exporter.value("cuda_mps_daemon_start_time_seconds") == pytest.approx(started, abs=1.1)
    assert exporter.value("cuda_mps_daemon_last_loss_timestamp_seconds") is not None
    found = exporter.events("daemon_up", "daemon_lost", "daemon_stopped")
    assert [event["event"] for event in found] == ["daemon_up", "daemon_lost", "daemon_up"]


def test_a_daemon_that_quits_is_stopped_and_not_lost(mps: MpsStandIn, serve: Serve) -> None:
    exporter = serve_up(mps, serve)
    eventually(lambda: _assert_obeyed(mps, "quit"))

    exporter.is_in_state("stopped")
    assert exporter.value("cuda_mps_daemon_losses_total") == 0
    assert exporter.value("cuda_mps_daemon_up") == 0
    assert not exporter.events("daemon_lost")


def _assert_obeyed(mps: MpsStandIn, command: str) -> None:
    """A client that connects during a query is refused at once, and tries again."""
    assert mps.ask(command).returncode == 0


@pytest.mark.parametrize(
    ("end", "state", "losses"),
    [("ActiveState=inactive\nResult=success", "stopped", 0), ("ActiveState=failed\nResult=signal", "down", 1)],
    ids=("by an operator", "it failed"),
)
def test_reads_the_end_of_a_daemon_from_its_unit(
    mps: MpsStandIn, serve: Serve, environment: dict[str, str], tmp_path: Path, end: str, state: str, losses: int
) -> None:
    known = f"Id={UNIT}\nLoadState=loaded\n"
    file = tmp_path / "exporter.toml"
    keys = {"pipe_directory": mps.pipe_directory, "log_directory": mps.log_directory, "unit": UNIT}
    file.write_text("[[daemons]]\n" + "".join(f'{key} = "{value}"\n' for key, value in keys.items()))
    systemctl = FakeSystemctl(tmp_path)
    systemctl.says(f"{known}ActiveState=active\nResult=success\n")
    mps.start()
    path = f"{systemctl.path.parent}:{environment['PATH']}"
    exporter = serve(PATH=path, CUDA_MPS_EXPORTER_CONFIG_FILE=str(file))
    exporter.is_in_state("up")
    until(lambda: systemctl.requested(UNIT))

    systemctl.says(f"{known}{end}\n")
    mps.terminate()

    exporter.is_in_state(state)
    exporter.shows(losses, "cuda_mps_daemon_losses_total", reason="died")
    found = exporter.events("daemon_lost", "daemon_stopped")
    assert [event["event"] for event in found] == ["daemon_lost" if losses else "daemon_stopped"]


def test_a_suspended_daemon_is_unresponsive_until_it_continues(mps: MpsStandIn, serve: Serve) -> None:
    mps.start()
    mps.connect_and_wait(UNUSED_PID)
    exporter = serve(fast=True)
    exporter.shows(1, "cuda_mps_server_clients")
    mps.stop_signal()

    exporter.is_in_state("unresponsive")
    assert exporter.value("cuda_mps_daemon_up") == 0
    assert exporter.value("cuda_mps_server_clients") == exporter.value("cuda_mps_client_info") == 1

    mps.cont()
    exporter.is_in_state("up")
    assert exporter.value("cuda_mps_daemon_losses_total") == 0
    found = exporter.events("daemon_up", "daemon_lost", "daemon_unresponsive", "daemon_responsive")
    assert [event["event"] for event in found] == ["daemon_up", "daemon_unresponsive", "daemon_responsive"]


def test_another_programs_session_holds_a_daemon_that_is_up(mps: MpsStandIn, serve: Serve) -> None:
    mps.start()
    exporter = serve(fast=True)
    exporter.is_in_state("up")

    with mps.held_session():
        exporter.is_in_state("held")
        assert exporter.value("cuda_mps_daemon_up") == 1
        mps.connect_and_wait(UNUSED_PID)
        exporter.shows(1, "cuda_mps_server_clients")
    exporter.is_in_state("up")


# -- collectors --------------------------------------------------------------------------------------------------


def test_other_collectors_run_while_nvml_hangs(mps: MpsStandIn, nvml: NvmlStandIn, serve: Serve) -> None:
    mps.start()
    nvml.write([Device()])
    exporter = serve(fast=True)
    exporter.shows(1, "cuda_mps_gpu_up", gpu=GPU)
    nvml.write([Device()], [hangs("nvmlDeviceGetMemoryInfo")])
    exporter.shows(0, "cuda_mps_exporter_source_up", source="nvml")
    assert exporter.value("cuda_mps_gpu_up", gpu=GPU) == 0
    assert exporter.value("cuda_mps_gpu_memory_used_bytes") is None

    mps.connect_and_wait(UNUSED_PID)
    exporter.shows(1, "cuda_mps_server_clients")
    mps.kill()
    exporter.shows(1, "cuda_mps_daemon_losses_total")
    blind = {labels["source"] for labels, up in exporter.samples("cuda_mps_exporter_source_up") if not up}
    assert "nvml" in blind
    assert not blind & {"log", "process", "control"}

    nvml.write([Device()])
    exporter.shows(1, "cuda_mps_exporter_source_up", source="nvml")
    exporter.shows(1, "cuda_mps_gpu_up", gpu=GPU)
    nvml.write([Device()], [hangs("*")])
    exporter.shows(0, "cuda_mps_exporter_source_up", source="nvml")
    assert exporter.stop() == 0


def test_a_lost_gpu_is_lost_after_a_restart_of_the_exporter(mps: MpsStandIn, nvml: NvmlStandIn, serve: Serve) -> None:
    mps.start()
    other = Device(index=1, uuid=GPU.replace("GPU-1", "GPU-2"), bus_id="0000:00:07.0")
    nvml.write([Device(), other])
    exporter = serve(fast=True)
    exporter.shows(1, "cuda_mps_gpu_up", gpu=other.uuid)
    nvml.write([Device()])
    exporter.shows(0, "cuda_mps_gpu_up", gpu=other.uuid)
    assert exporter.stop() == 0

    exporter = serve(fast=True)
    exporter.shows(1, "cuda_mps_gpu_up", gpu=GPU)
    assert exporter.value("cuda_mps_gpu_up", gpu=other.uuid) == 0
    nvml.write([Device(), other])
    exporter.shows(1, "cuda_mps_gpu_up", gpu=other.uuid)


def test_serves_without_a_driver(mps: MpsStandIn, serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    mps.start()
    mps.connect_and_wait(UNUSED_PID)
    exporter = serve(LD_LIBRARY_PATH=str(tmp_path))

    exporter.shows(1, "cuda_mps_server_clients")
    exporter.shows(0, "cuda_mps_exporter_source_up", source="nvml")
    assert exporter.value("cuda_mps_client_memory_used_bytes") is None


def test_reports_limits_and_their_changes(mps: MpsStandIn, nvml: NvmlStandIn, serve: Serve, start: Starter) -> None:
    mps.start()
    eventually(lambda: _assert_obeyed(mps, "set_default_device_pinned_mem_limit 0 3G"))
    three_clients(mps, nvml, start)
    exporter = serve()
    exporter.shows(1, "cuda_mps_server_active_thread_ratio")
    exporter.shows(3 << 30, "cuda_mps_server_pinned_memory_limit_bytes", gpu=GPU)
    exporter.shows(3 << 30, "cuda_mps_daemon_default_pinned_memory_limit_bytes", gpu=GPU)

    mps.ask(f"set_active_thread_percentage {mps.server_pid} 25")
    eventually(lambda: _assert_obeyed(mps, "set_default_device_pinned_mem_limit 0 2G"))

    exporter.shows(0.25, "cuda_mps_server_active_thread_ratio")
    exporter.shows(2 << 30, "cuda_mps_daemon_default_pinned_memory_limit_bytes", gpu=GPU)
    exporter.shows(3 << 30, "cuda_mps_server_pinned_memory_limit_bytes", gpu=GPU)


def test_reads_limits_from_the_environment_of_clients(
    mps: MpsStandIn, nvml: NvmlStandIn, serve: Serve, start: Starter
) -> None:
    """Four clients with a quarter of the threads and 20 GiB each."""
    mps.start()
    own = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=20G"}
    clients = {start(env=os.environ | own).pid: 516 for _ in range(4)}
    for pid in clients:
        mps.connect_and_wait(pid)
    nvml.write([replace(on_the_gpu(clients, mps), memory_used_bytes=(4 * 516 + 66) * MEBIBYTE)])
    exporter = serve()
    exporter.shows(1.0, "cuda_mps_gpu_thread_percentage_committed_ratio", gpu=GPU)
    exporter.shows(80 * (1 << 30) / Device().memory_total_bytes, "cuda_mps_gpu_pinned_memory_committed_ratio", gpu=GPU)
    exporter.shows(3, "cuda_mps_gpu_clients_fit", gpu=GPU, bound="memory")
    exporter.shows(44, "cuda_mps_gpu_clients_fit", gpu=GPU, bound="slots")


def test_a_server_on_gpus_before_volta_accepts_16_clients(
    mps: MpsStandIn, nvml: NvmlStandIn, serve: Serve, start: Starter
) -> None:
    mps.start()
    mps.connect_and_wait(start().pid)
    nvml.write([Device(compute_capability=(6, 1))])
    serve().shows(16, "cuda_mps_server_clients_limit")


# -- its end -------------------------------------------------------------------------------------------------------


def test_stops_at_sigterm_during_a_query(mps: MpsStandIn, serve: Serve) -> None:
    """At the end of each test, `serve` asserts that a service that is not querying stops too."""
    mps.start()
    mps.stop_signal()
    exporter = serve()
    until(lambda: control_processes(mps))

    assert exporter.stop() == 0
    until(lambda: not control_processes(mps))


def _none(found: object) -> None:
    assert not found


def test_notifies_systemd(mps: MpsStandIn, serve: Serve, tmp_path: Path) -> None:
    mps.start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE_SECONDS)
        exporter = serve(NOTIFY_SOCKET=str(tmp_path / "notify"))
        found = [manager.recv(4096).decode()]
        while not found[-1].startswith("WATCHDOG=1\nSTATUS="):
            found.append(manager.recv(4096).decode())
        exporter.process.send_signal(signal.SIGTERM)
        while "STOPPING=1" not in found:
            found.append(manager.recv(4096).decode())

    assert found[0] == "READY=1"
    assert all(each.partition("\n")[0] == "WATCHDOG=1" for each in found[1:-1])
    assert exporter.process.wait(PATIENCE_SECONDS) == 0


# -- commands ------------------------------------------------------------------------------------------------------


def test_status_prints_clients_and_bypassing_processes_as_a_table_and_as_json(
    mps: MpsStandIn, nvml: NvmlStandIn, environment: dict[str, str], start: Starter
) -> None:
    mps.start()
    clients = three_clients(mps, nvml, start)
    beside = start().pid
    nvml.write([on_the_gpu(clients, mps, beside)])

    done = run(environment, "status")

    assert (done.returncode, done.stderr) == (1, "")
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(str(mps.pipe_directory))]
    user = psutil.Process().username()
    assert sorted(rows) == sorted(
        [str(mps.pipe_directory), str(mps.server_pid), "active", str(pid), user, "sleep", "0", f"{used}", "MiB", "A"]
        for pid, used in clients.items()
    )
    assert "sharing of GPU 0: " in done.stdout
    (row,) = (line.split() for line in done.stdout.splitlines() if line.split()[2:3] == ["bypassing"])
    assert row[3] == str(beside)

    done = run(environment, "status", "--json")
    (daemon,) = json.loads(done.stdout)["daemons"]
    (server,) = daemon["servers"]

    assert (done.returncode, daemon["state"], daemon["pid"], daemon["version"]) == (1, "up", mps.pid, "13000")
    assert (server["pid"], server["state"]) == (mps.server_pid, "active")
    assert {each["pid"]: each["memory_used_bytes"] for each in server["clients"]} == {
        pid: {GPU: mebibytes * MEBIBYTE} for pid, mebibytes in clients.items()
    }


def test_status_fails_if_a_server_is_in_fault_or_an_expected_daemon_is_down(
    mps: MpsStandIn, environment: dict[str, str]
) -> None:
    mps.start()
    mps.connect_and_wait(UNUSED_PID)
    mps.fault(UNUSED_PID)
    done = run(environment, "status")
    assert (done.returncode, "fault" in done.stdout) == (1, True)

    mps.kill()
    for flags in ([], ["--json"]):
        done = run(environment, "status", *flags)
        assert (done.returncode, "down" in done.stdout) == (1, True)


@pytest.mark.systems
def test_status_shows_a_hung_and_a_held_daemon(mps: MpsStandIn, environment: dict[str, str]) -> None:
    status = fast_command("status")
    mps.start()
    with mps.held_session():
        held = run_python(environment, *status)
    mps.stop_signal()
    hung = run_python(environment, *status)
    mps.cont()

    assert (held.returncode, "held" in held.stdout) == (1, True)
    assert (hung.returncode, "unresponsive" in hung.stdout, "get_server_list: no answer" in hung.stdout) == (
        1,
        True,
        True,
    )


@contextmanager
def recorded(
    environment: dict[str, str], file: Path, *options: str
) -> Iterator[tuple[Exporter, Callable[[str, int], None]]]:
    """Run `record` until the end of the block. Its log has the events, and a function asserts how many of a name."""
    command = program.command("record", str(file), *options, "--log.format=json")
    recorder = Exporter(command, environment, file.with_suffix(".log"))

    def reports(name: str, times: int) -> None:
        assert len(recorder.events(name)) == times

    try:
        yield recorder, reports
    finally:
        recorder.process.send_signal(signal.SIGTERM)
        assert recorder.process.wait(PATIENCE_SECONDS) == 0


def _assert_ranges_recorded(file: Path, clients: Iterable[int]) -> None:
    """Assert that the address ranges of these clients are recorded, and of no other process."""
    lines = [line for line in file.read_text().splitlines() if line.endswith("}") and '"address_ranges"' in line]
    assert {json.loads(line)["pid"] for line in lines if "gpu" in json.loads(line)} == set(clients)


def test_replay_prints_the_events_of_a_recording(
    mps: MpsStandIn, nvml: NvmlStandIn, environment: dict[str, str], tmp_path: Path, start: Starter
) -> None:
    file = tmp_path / "recording.jsonl"
    mps.start()
    clients = three_clients(mps, nvml, start)
    with recorded(environment, file) as (recorder, reports):
        eventually(lambda: reports("client_connected", 3))
        mps.connect_and_wait(UNUSED_PID)
        eventually(lambda: reports("client_connected", 4))
        mps.disconnect(UNUSED_PID)
        eventually(lambda: reports("client_disconnected", 1))
        mps.fault(next(iter(clients)))
        eventually(lambda: reports("server_state", 2))
        eventually(lambda: _assert_ranges_recorded(file, clients))
    live = [record for record in recorder.records() if "daemon" in record]

    events = [json.loads(line) for line in run(environment, "replay", "--events", str(file)).stdout.splitlines()]
    metrics = run(environment, "replay", "--metrics", str(file)).stdout

    *while_it_ran, at_its_end = events
    assert while_it_ran == [{key: each[key] for key in each if key not in ("level", "timestamp")} for each in live]
    assert at_its_end["event"] == "fault_open"
    assert re.search(r'cuda_mps_server_state\{.*state="fault"\} 1\.0', metrics)
    assert sorted(re.findall(r'cuda_mps_client_info\{.*pid="(\d+)"', metrics)) == sorted(map(str, clients))


def test_record_stops_after_the_given_duration(environment: dict[str, str], tmp_path: Path) -> None:
    done = run(environment, "record", str(tmp_path / "recording.jsonl"), "--for", "300ms")

    assert done.returncode == 0
    header = json.loads((tmp_path / "recording.jsonl").read_text().splitlines()[0])
    assert header["recording"] == FORMAT


def test_record_masks_names_and_identifiers(
    mps: MpsStandIn, nvml: NvmlStandIn, environment: dict[str, str], tmp_path: Path, start: Starter
) -> None:
    file = tmp_path / "recording.jsonl"
    mps.start()
    clients = three_clients(mps, nvml, start)
    with recorded(environment, file, "--mask") as (_, reports):
        eventually(lambda: reports("client_connected", 3))
    text, metrics = file.read_text(), run(environment, "replay", "--metrics", str(file)).stdout

    assert GPU not in text
    assert str(mps.pipe_directory.parent) not in text
    assert sorted(re.findall(r'cuda_mps_client_info\{.*pid="(\d+)"', metrics)) == sorted(map(str, clients))


def test_record_replaces_no_file(environment: dict[str, str], tmp_path: Path) -> None:
    for name in ("recording.jsonl", "recording.jsonl.gz"):
        (tmp_path / name).write_text("important")
        done = run(environment, "record", str(tmp_path / name), "--for", "300ms")

        assert (done.returncode, (tmp_path / name).read_text()) == (1, "important")
        assert f"{tmp_path / name} exists; record to another file" in done.stderr


def test_promtool_accepts_the_metrics(mps: MpsStandIn, nvml: NvmlStandIn, serve: Serve, start: Starter) -> None:
    promtool = needed("promtool")
    mps.start()
    clients = three_clients(mps, nvml, start)
    exporter = serve()
    exporter.shows(3, "cuda_mps_server_clients")
    exporter.shows(sum(clients.values()) * MEBIBYTE, "cuda_mps_client_memory_used_bytes")
    alive = exporter.scrape()
    mps.kill()
    exporter.shows(1, "cuda_mps_daemon_losses_total")

    for text in (alive, exporter.scrape()):
        done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
