"""The service as its operator knows it: paused and resumed, configured anew, with daemons that it found itself."""

import os
import re
import signal
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.clock import SystemClock
from exporter.model.settings import Retention
from exporter.store.database import StateFile, read_history
from tests import program
from tests.conftest import Starter
from tests.containers import Container
from tests.eventually import PATIENCE_SECONDS, eventually
from tests.exporter_process import GPU, UNUSED_PID, Exporter, run
from tests.program import main
from tests.standin.mps import MpsStandIn
from tests.standin.nvml import DRIVER, Device, NvmlStandIn

Serve = Callable[..., Exporter]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Runs a command in this process: its exit code, and what it writes to both streams."""

    def run_here(*arguments: str, variables: Mapping[str, str] = environment) -> tuple[int, str, str]:
        monkeypatch.setattr(os, "environ", dict(variables))
        code = main(arguments)
        written = capsys.readouterr()
        return code, written.out, written.err

    return run_here


def test_pause_closes_the_driver_until_resume(
    serve: Serve, mps: MpsStandIn, nvml: NvmlStandIn, environment: dict[str, str], tmp_path: Path
) -> None:
    device = tmp_path / "nvidiactl"
    device.touch()
    mps.start()
    nvml.write([Device()])
    exporter = serve(overrides={"intervals": {"nvml": 1}}, STANDIN_NVML_DEVICE=str(device))
    exporter.shows(1, "cuda_mps_gpu_up", gpu=GPU)
    assert _holds(exporter, device)

    done = run(environment, "pause")

    assert (done.returncode, done.stdout) == (0, "paused: the exporter has closed the driver until you resume it\n")
    assert not _holds(exporter, device)
    exporter.shows(1, "cuda_mps_exporter_paused")
    exporter.shows(0, "cuda_mps_gpu_up", gpu=GPU)
    assert exporter.value("cuda_mps_gpu_memory_used_bytes") is None
    assert exporter.value("cuda_mps_daemon_up") == 1

    assert run(environment, "pause").stdout.startswith("already paused: ")
    assert run(environment, "resume").stdout == "resumed: the driver is in use again\n"
    exporter.shows(0, "cuda_mps_exporter_paused")
    again = run(environment, "resume")
    assert (again.returncode, again.stdout) == (1, "nothing to resume: the driver was not paused\n")
    exporter.shows(1, "cuda_mps_gpu_up", gpu=GPU)
    assert _holds(exporter, device)


def test_the_page_has_the_last_hour_after_a_restart_of_the_exporter(
    serve: Serve, mps: MpsStandIn, nvml: NvmlStandIn, environment: dict[str, str]
) -> None:
    mps.start()
    nvml.write([Device()])
    first = serve(overrides={"intervals": {"nvml": 1}})
    first.shows(1, "cuda_mps_gpu_up", gpu=GPU)
    run(environment, "pause")
    first.shows(1, "cuda_mps_exporter_paused")
    run(environment, "resume")
    eventually(lambda: _shows(first, "an operator resumed the exporter"))
    eventually(lambda: _shows(first, "0 now; between 0 and 0"))
    assert first.stop() == 0
    file = StateFile(Path(environment["STATE_DIRECTORY"]), Retention(), SystemClock())
    (taken, *_) = file.open().samples
    file.write([replace(taken, at=taken.at - 600, clients=7), taken])
    file.close()

    second = serve(overrides={"intervals": {"nvml": 1}})
    second.shows(1, "cuda_mps_gpu_up", gpu=GPU)
    for words in ("an operator paused the exporter", "an operator resumed the exporter", "the exporter started"):
        _shows(second, words)
    eventually(lambda: _shows(second, "0 now; between 0 and 7"))
    assert re.search(r"V100m\d+ 0V", _page(second)), "the time without an exporter is a gap"


def test_ends_after_an_upgrade_of_the_driver_once(
    serve: Serve, mps: MpsStandIn, environment: dict[str, str], tmp_path: Path
) -> None:
    """A container keeps the libraries of the old driver until the kubelet starts another one."""
    mps.start()
    driver = NvmlStandIn(tmp_path, version=DRIVER)
    driver.build()
    driver.write([Device()])
    first = serve(overrides={"intervals": {"nvml": 0.5}}, **driver.environment())
    first.shows(1, "cuda_mps_gpu_up", gpu=GPU)
    run(environment, "pause")
    first.shows(1, "cuda_mps_exporter_paused")
    driver.install_driver("590.44.01")
    run(environment, "resume")

    assert first.process.wait(PATIENCE_SECONDS) == os.EX_TEMPFAIL
    assert [each["level"] for each in first.records() if each["event"] == "driver_replaced"] == ["warning"]
    _, events = read_history(Path(environment["STATE_DIRECTORY"]))
    assert "exporter_resumed" in [each.event for each in events]

    second = serve(overrides={"intervals": {"nvml": 0.5}}, **driver.environment())
    second.shows(1, "cuda_mps_exporter_source_problem_info", source="nvml", problem="driver_mismatch")
    driver.install_driver(DRIVER)
    second.shows(1, "cuda_mps_gpu_up", gpu=GPU)


def _page(exporter: Exporter) -> str:
    with urllib.request.urlopen(exporter.address().removesuffix("metrics"), timeout=PATIENCE_SECONDS) as answer:
        return str(answer.read().decode())


def _shows(exporter: Exporter, words: str) -> None:
    assert words in _page(exporter)


def _holds(exporter: Exporter, device: Path) -> bool:
    descriptors = Path(f"/proc/{exporter.process.pid}/fd").iterdir()
    return any(each.exists() and each.samefile(device) for each in descriptors)


@pytest.mark.parametrize("name", ["pause", "resume"])
def test_pause_and_resume_without_a_service_are_errors(command: Command, name: str) -> None:
    code, _, problem = command(name)

    assert (code, "no service answers" in problem) == (1, True)


def test_status_queries_no_daemon_beside_a_service_and_resume_accepts_expected_daemons_only(
    serve: Serve, mps: MpsStandIn, nvml: NvmlStandIn, environment: dict[str, str], start: Starter
) -> None:
    mps.start()
    nvml.write([Device()])
    mps.connect_and_wait(start().pid)
    exporter = serve()
    exporter.shows(1, "cuda_mps_server_clients")
    asked = _questions(mps)

    done = run(environment, "status")

    assert (done.returncode, "active" in done.stdout) == (0, True)
    assert _questions(mps) == asked, "the daemon is not asked again"

    assert run(environment, "status", "--look").stdout.split()[:2] == done.stdout.split()[:2]
    assert _questions(mps) > asked

    name = str(mps.pipe_directory)
    done, refused = run(environment, "resume", name), run(environment, "resume", "another")
    assert (done.returncode, done.stdout) == (1, f"nothing to resume: restarts of {name} were not suspended\n")
    (reported,) = exporter.events("resumed")
    assert reported["daemon"] == name
    assert (refused.returncode, refused.stderr.split("service.sock: ")[1]) == (
        1,
        f"another is not an expected daemon; the expected daemons are: {name}\n",
    )


def test_reports_a_fault_by_api_and_command(
    serve: Serve, mps: MpsStandIn, nvml: NvmlStandIn, environment: dict[str, str], start: Starter
) -> None:
    mps.start()
    nvml.write([Device()])
    client = start().pid
    mps.connect_and_wait(client)
    exporter = serve()
    exporter.shows(1, "cuda_mps_client_info", command="sleep")
    assert (run(environment, "incidents").returncode, exporter.page("/api/v1/incidents")["data"]) == (0, [])

    mps.fault(client)

    (reported,) = eventually(lambda: _the_fault(exporter))
    assert (reported["server"], [each["pid"] for each in reported["affected"]]) == (mps.server_pid, [client])
    listed, in_words = run(environment, "incidents"), run(environment, "incidents", reported["id"])
    assert (listed.returncode, reported["id"] in listed.stdout) == (1, True)
    assert (in_words.returncode, f"PID {client} (" in in_words.stdout) == (1, True)
    (event,) = exporter.page("/api/v1/events?event=fault")["data"]
    assert event["incident"] == reported["id"]


def _the_fault(exporter: Exporter) -> list[dict[str, Any]]:
    """Return the incident after its affected clients are known."""
    found: list[dict[str, Any]] = exporter.page("/api/v1/incidents")["data"]
    assert [each for each in found if each["affected"]]
    assert exporter.page("/api/v1/events?event=fault")["data"]
    return found


def _questions(mps: MpsStandIn) -> int:
    return (mps.log_directory / "control.log").read_text().count("Cmd:")


def test_a_fault_outlives_the_exporter(serve: Serve, mps: MpsStandIn, environment: dict[str, str]) -> None:
    """It was killed, and the next exporter reports the recovery."""
    mps.start()
    mps.connect_and_wait(UNUSED_PID)
    first = serve()
    first.shows(1, "cuda_mps_server_clients")
    mps.fault(UNUSED_PID)
    (opening,) = eventually(lambda: _logged(first, "fault"))
    state = Path(environment["STATE_DIRECTORY"])
    eventually(lambda: _kept(state))
    first.process.kill()
    first.process.wait()
    assert mps.is_running(), "the daemon outlives the exporter"
    assert mps.ask("get_server_list").returncode == 0

    second = serve()
    second.shows(1, "cuda_mps_exporter_history_writable")
    mps.disconnect(UNUSED_PID)
    (end,) = eventually(lambda: _logged(second, "incident"))

    assert end["incident"] == opening["incident"]
    assert (first.events("incident"), second.events("fault", "fault_recovered")) == ([], [])
    assert second.stop() == 0
    third = serve()
    third.shows(1, "cuda_mps_exporter_history_writable")
    assert third.page(f"/api/v1/incidents/{end['incident']}")["data"]["ending"] == end["ending"]
    assert third.events("incident", "fault") == []
    assert third.stop() == 0
    (incident,), events = read_history(state)
    assert (incident.id, incident.open) == (opening["incident"], False)
    assert [each.event for each in events if each.event in ("fault", "fault_recovered")] == ["fault_recovered", "fault"]


def _logged(exporter: Exporter, name: str) -> list[dict[str, Any]]:
    found = exporter.events(name)
    assert found
    return found


def _kept(state: Path) -> None:
    assert any(each.opening_reported for each in read_history(state)[0])


@pytest.fixture
def other(tmp_path: Path) -> Iterator[MpsStandIn]:
    """Another daemon on the same node."""
    (tmp_path / "o").mkdir()
    with MpsStandIn(tmp_path / "o") as standin:
        yield standin


def configuration(*daemons: MpsStandIn, age: str = "0") -> str:
    return f"[clients]\nmin_age_seconds = {age}\n" + "".join(
        f'[[daemons]]\nname = "{number}"\npipe_directory = "{mps.pipe_directory}"\n'
        f'log_directory = "{mps.log_directory}"\n'
        for number, mps in enumerate(daemons)
    )


def test_reload(serve: Serve, mps: MpsStandIn, other: MpsStandIn, tmp_path: Path) -> None:
    """A valid configuration takes effect, and an invalid one does not. The name is short, because paths of sockets are.

    A socket's path has at most 107 bytes, and a temporary directory has the names of the user and the test.
    """
    file = tmp_path / "config.toml"
    file.write_text(configuration(mps))
    mps.start()
    other.start()
    exporter = serve(CUDA_MPS_EXPORTER_CONFIG_FILE=str(file))
    exporter.shows(1, "cuda_mps_daemon_up", daemon="0")
    exporter.shows(1, "cuda_mps_exporter_config_last_reload_successful")

    file.write_text(configuration(mps, other))
    exporter.process.send_signal(signal.SIGHUP)
    exporter.shows(1, "cuda_mps_daemon_up", daemon="1")

    file.write_text("[clients]\nmni_age_seconds = 3\n")
    exporter.process.send_signal(signal.SIGHUP)
    exporter.shows(0, "cuda_mps_exporter_config_last_reload_successful")
    (reported,) = exporter.events("reload_failed")
    assert "mni_age_seconds" in reported["problem"]
    assert exporter.value("cuda_mps_daemon_up") == 2

    file.write_text(configuration(other, age="3"))
    exporter.process.send_signal(signal.SIGHUP)
    exporter.shows(1, "cuda_mps_exporter_config_last_reload_successful")


def test_discovers_a_daemon_and_reports_its_exit(
    serve: Serve, mps: MpsStandIn, other: MpsStandIn, start: Starter
) -> None:
    mps.start()
    exporter = serve(overrides={"discovery": True})
    other.start()
    client = start().pid
    other.connect_and_wait(client)
    exporter.process.send_signal(signal.SIGHUP)  # It looks for daemons at once, not within ten seconds.
    name = str(other.pipe_directory)

    exporter.shows(1, "cuda_mps_daemon_up", daemon=name)
    exporter.shows(1, "cuda_mps_client_info", daemon=name, pid=str(client))
    assert exporter.value("cuda_mps_daemon_info", daemon=name, expected="false") == 1
    assert exporter.value("cuda_mps_daemon_info", daemon=str(mps.pipe_directory), expected="true") == 1

    other.kill()
    exporter.shows(0, "cuda_mps_daemon_up", daemon=name)
    exporter.shows(1, "cuda_mps_daemon_losses_total", daemon=name)
    assert exporter.value("cuda_mps_daemon_losses_total", daemon=str(mps.pipe_directory)) == 0


def test_prints_a_configuration_that_can_be_used_again(
    command: Command, environment: dict[str, str], tmp_path: Path
) -> None:
    code, shown, _ = command("serve", "--config.check")
    (tmp_path / "again.toml").write_text(shown)
    plain = {key: value for key, value in environment.items() if not key.startswith("CUDA_MPS_")}

    again = command("serve", "--config.check", f"--config.file={tmp_path / 'again.toml'}", variables=plain)

    assert (code, again[:2]) == (0, (0, shown))


def test_check_rejects_an_invalid_web_configuration(command: Command, tmp_path: Path) -> None:
    (tmp_path / "web.yml").write_text("tls_server_confg: {}\n")

    code, _, problem = command("serve", "--config.check", f"--web.config.file={tmp_path / 'web.yml'}")

    assert (code, "tls_server_confg" in problem) == (2, True)


def test_translates_the_pids_of_a_daemon_in_a_container(
    serve: Serve, environment: dict[str, str], tmp_path: Path
) -> None:
    exporter = serve(overrides={"discovery": True})
    with Container(tmp_path / "container") as container:
        daemon = container.start()
        inner, outer = container.client()
        container.mps.connect_and_wait(inner)
        exporter.process.send_signal(signal.SIGHUP)  # It looks for daemons at once, not within ten seconds.

        exporter.shows(1, "cuda_mps_client_info", pid=str(outer))
        ((labels, _),) = exporter.samples("cuda_mps_client_info", pid=str(outer))
        assert labels["daemon"].startswith(f"{container.directory}/pipe@")
        assert exporter.value("cuda_mps_daemon_up", daemon=labels["daemon"]) == 1
        eventually(lambda: _assert_known(exporter, labels["daemon"]))

        os.kill(daemon, signal.SIGKILL)
        exporter.shows(1, "cuda_mps_daemon_losses_total", daemon=labels["daemon"])
        exporter.shows(None, "cuda_mps_client_info", pid=str(outer))


def _assert_known(exporter: Exporter, daemon: str) -> None:
    """Assert that its process is known, so that its exit is noticed at once."""
    assert exporter.value("cuda_mps_daemon_start_time_seconds", daemon=daemon) is not None


def test_record_stops_at_sighup(environment: dict[str, str], mps: MpsStandIn, tmp_path: Path) -> None:
    mps.start()
    arguments = program.command("record", str(tmp_path / "recording.jsonl"), "--log.format=json")
    recorder = Exporter(arguments, environment, tmp_path / "record.log")
    eventually(lambda: _assert_logged(recorder, "daemon_up"))

    recorder.process.send_signal(signal.SIGHUP)

    assert recorder.process.wait(PATIENCE_SECONDS) == 0


def _assert_logged(exporter: Exporter, event: str) -> None:
    assert exporter.events(event)
