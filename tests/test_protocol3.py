"""The program beside a stand-in daemon with protocol 3, which follows NVIDIA's guide. No real one was at hand."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.parse import protocol3
from tests.conftest import Starter
from tests.eventually import eventually
from tests.exporter_process import GPU, Serve, on_the_gpu, run
from tests.standin.mps import MpsStandIn
from tests.standin.mps_daemon.protocol3 import server_name
from tests.standin.nvml import MEBIBYTE, NvmlStandIn


@pytest.fixture
def mps(tmp_path: Path) -> Iterator[MpsStandIn]:
    """A stand-in with protocol 3, not started yet."""
    with MpsStandIn(tmp_path, variables={"CUDA_MPS_PROTOCOL_VERSION": "3"}) as standin:
        yield standin


@pytest.mark.systems
def test_reports_clients_states_limits_and_logs(
    mps: MpsStandIn, nvml: NvmlStandIn, serve: Serve, start: Starter
) -> None:
    mps.start()
    exporter = serve()
    exporter.is_in_state("up")
    assert exporter.value("cuda_mps_daemon_info", protocol="3") == 1
    assert exporter.value("cuda_mps_daemon_supported") == 1
    clients = [start().pid for _ in range(3)]
    for pid in clients:
        mps.connect_and_wait(pid)
    bypassing = start().pid
    nvml.write([on_the_gpu(dict.fromkeys(clients, 512), mps, bypassing)])
    exporter.shows(3, "cuda_mps_client_info", command="sleep")
    exporter.shows(3 * 512 * MEBIBYTE, "cuda_mps_client_memory_used_bytes", gpu=GPU)
    exporter.shows(1, "cuda_mps_server_state", server=str(mps.server_pid), state="active")
    exporter.shows(1, "cuda_mps_server_name_info")
    exporter.shows(1, "cuda_mps_bypassing_processes")
    name = f"{server_name(0)}/server.log"
    exporter.shows(1, "cuda_mps_exporter_log_followed", file=name)
    eventually(lambda: _has_logged(mps.log_directory / name, "is ACTIVE"))

    mps.disconnect(clients[0])
    nvml.write([on_the_gpu(dict.fromkeys(clients[1:], 512), mps)])
    exporter.shows(2, "cuda_mps_client_info")
    assert exporter.value("cuda_mps_exporter_replies_unrecognized_total") == 0


def _has_logged(log: Path, text: str) -> None:
    assert text in log.read_text()


def test_a_command_line_cannot_forge_a_client(
    mps: MpsStandIn, nvml: NvmlStandIn, serve: Serve, environment: dict[str, str], start: Starter
) -> None:
    mps.start()
    client, victim = start().pid, start().pid
    forged = f"x\n{victim},{server_name(0)},{GPU},{server_name(0)}/default (0),sleep"
    mps.connect_and_wait(client, command=forged)
    assert f"\n{victim},{server_name(0)}," in mps.ask(protocol3.LIST_CLIENTS).stdout
    nvml.write([on_the_gpu({client: 512}, mps)])
    exporter = serve()
    exporter.shows(1, "cuda_mps_client_info")
    assert exporter.value("cuda_mps_client_info", pid=str(victim)) is None
    assert str(client) in run(environment, "status", "--look").stdout, "status needs no service"
