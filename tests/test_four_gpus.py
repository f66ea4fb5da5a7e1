"""A node with four GPUs and a daemon for each: what happens to one of them concerns no other."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import Starter
from tests.eventually import eventually
from tests.exporter_process import Exporter, Serve, on_the_gpu
from tests.standin.mps import MpsStandIn
from tests.standin.nvml import NvmlStandIn

UUIDS = tuple(f"GPU-{number}efa3f60-b0ba-115c-7d58-bd5711d3de4b" for number in range(4))
BUS_IDS = tuple(f"0000:{number:02x}:00.0" for number in (0x1B, 0x43, 0x9D, 0xDB))
THIRD = 2


class FourDaemons:
    """The daemons, with two clients each, and the driver."""

    def __init__(self, daemons: tuple[MpsStandIn, ...], nvml: NvmlStandIn, start: Starter) -> None:
        """Start the daemons and their clients."""
        self.daemons, self.nvml = daemons, nvml
        self.clients = tuple(self._connected(mps, start) for mps in daemons)
        self.read()

    @staticmethod
    def _connected(mps: MpsStandIn, start: Starter) -> tuple[int, ...]:
        mps.start()
        pids = (start().pid, start().pid)
        for pid in pids:
            mps.connect_and_wait(pid)
        return pids

    def read(self, *without: int) -> None:
        """Let NVML list the processes of all daemons but some."""
        self.nvml.write(
            [
                replace(
                    on_the_gpu({} if number in without else dict.fromkeys(self.clients[number], 1540), mps),
                    index=number,
                    uuid=UUIDS[number],
                    bus_id=BUS_IDS[number],
                )
                for number, mps in enumerate(self.daemons)
            ]
        )

    def name(self, number: int) -> str:
        """Return the label of a daemon."""
        return str(self.daemons[number].pipe_directory)


@pytest.fixture
def four(tmp_path_factory: pytest.TempPathFactory, nvml: NvmlStandIn, start: Starter) -> Iterator[FourDaemons]:
    """Four daemons, each with one GPU, that run. The paths of their sockets must be short."""
    with contextlib.ExitStack() as stack:
        daemons = tuple(stack.enter_context(MpsStandIn(tmp_path_factory.mktemp("gpu"), gpus=(uuid,))) for uuid in UUIDS)
        yield FourDaemons(daemons, nvml, start)


def served(four: FourDaemons, serve: Serve, tmp_path: Path) -> Exporter:
    """Return an exporter that knows all clients."""
    entries = (
        f'[[daemons]]\npipe_directory = "{mps.pipe_directory}"\nlog_directory = "{mps.log_directory}"\n'
        for mps in four.daemons
    )
    config = tmp_path / "four.toml"
    config.write_text("".join(entries))
    exporter = serve(fast=True, CUDA_MPS_EXPORTER_CONFIG_FILE=str(config))
    for number in range(4):
        exporter.shows(2, "cuda_mps_server_clients", daemon=four.name(number))
        exporter.shows(2 * 1540 * (1 << 20), "cuda_mps_client_memory_used_bytes", gpu=UUIDS[number])
        exporter.shows(0, "cuda_mps_xid_errors_total", gpu=UUIDS[number])
    return exporter


def others(four: FourDaemons, exporter: Exporter) -> Mapping[str, object]:
    """Return what metrics and status show of the other daemons and their GPUs, except for what only grows."""
    shown: dict[str, object] = {}
    status = exporter.page("/api/v1/status")["data"]
    for number in {0, 1, 3}:
        name = four.name(number)
        (daemon,) = (each for each in status["daemons"] if each["name"] == name)
        shown[name] = {
            "up": exporter.value("cuda_mps_daemon_up", daemon=name),
            "state": exporter.value("cuda_mps_server_state", daemon=name, state="active"),
            "clients": exporter.value("cuda_mps_server_clients", daemon=name),
            "faults": exporter.value("cuda_mps_faults_total", daemon=name),
            "losses": exporter.value("cuda_mps_daemon_losses_total", daemon=name),
            "affected": exporter.value("cuda_mps_fault_affected_clients_total", daemon=name),
            "disconnected": exporter.value("cuda_mps_clients_disconnected_total", daemon=name),
            "xids": exporter.value("cuda_mps_xid_errors_total", gpu=UUIDS[number]),
            "severity": (daemon["severity"], daemon["label"]),
            "pids": sorted(each["pid"] for server in daemon["servers"] for each in server["clients"]),
        }
    return shown


def assert_only(four: FourDaemons, exporter: Exporter, code: str) -> None:
    """Assert that the third daemon has this problem, and that none concerns another daemon."""
    first, *more = exporter.page("/api/v1/status")["data"]["findings"]
    assert (first["code"], first["daemons"]) == (code, [four.name(THIRD)])
    assert all(four.name(THIRD) in each["text"] for each in more)


def test_a_fault_concerns_one_daemon_of_four(four: FourDaemons, serve: Serve, tmp_path: Path) -> None:
    exporter = served(four, serve, tmp_path)
    before = others(four, exporter)
    four.nvml.raise_xid(THIRD, 31)
    four.daemons[THIRD].fault(four.clients[THIRD][0])
    exporter.shows(1, "cuda_mps_faults_total", daemon=four.name(THIRD))
    exporter.shows(2, "cuda_mps_fault_affected_clients_total", daemon=four.name(THIRD))
    exporter.shows(1, "cuda_mps_xid_errors_total", gpu=UUIDS[THIRD], xid="31")
    eventually(lambda: assert_only(four, exporter, "server_fault"))
    (fault,) = exporter.page("/api/v1/incidents")["data"]
    assert (fault["daemon"], fault["gpus"]) == (four.name(THIRD), [UUIDS[THIRD]])
    assert sorted(each["pid"] for each in fault["affected"]) == sorted(four.clients[THIRD])
    assert others(four, exporter) == before


@pytest.mark.parametrize(("signal", "code"), [("kill", "daemon_down"), ("stop_signal", "daemon_suspended")])
def test_the_end_or_hang_of_one_daemon_concerns_no_other(
    signal: str, code: str, four: FourDaemons, serve: Serve, tmp_path: Path
) -> None:
    exporter = served(four, serve, tmp_path)
    before = others(four, exporter)
    getattr(four.daemons[THIRD], signal)()
    if signal == "kill":
        four.read(THIRD)
    exporter.shows(0, "cuda_mps_daemon_up", daemon=four.name(THIRD))
    eventually(lambda: assert_only(four, exporter, code))
    assert others(four, exporter) == before
    if signal == "stop_signal":
        four.daemons[THIRD].cont()
