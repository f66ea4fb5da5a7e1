"""Each mode of MPS and MIG that a stand-in can play, through metrics, page, status, recording, replay and doctor.

What is expected is written here from NVIDIA's MPS guide, its MIG guide and nvml.h, and not computed by the exporter.
"""

import json
import os
import signal
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import program
from tests.conftest import Starter
from tests.eventually import PATIENCE_SECONDS, eventually
from tests.exporter_process import FAST, SERVE, Exporter, run, run_python
from tests.standin.mps import MpsStandIn
from tests.standin.mps_daemon.wording import BINARY_VERSIONS
from tests.standin.nvml import MEBIBYTE, Device, Instance, NvmlStandIn, Process

pytestmark = pytest.mark.systems

CLIENT_MEBIBYTES, SERVER_MEBIBYTES = 1540, 66
SECOND_GPU = "GPU-6edbf013-6106-5444-db3f-e433a41888b9"
PARTITION = "Kp8AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
GPM = {"sm_utilization": 50.0, "dram_bandwidth": 10.0}

PATIENT = {"control_deadline": PATIENCE_SECONDS, "collect_deadline": PATIENCE_SECONDS}
"""On a busy machine, a command waits for each answer."""

HOPPER = Device(readings={**GPM, "mig": 0, "persistence": 1}, memory_used_bytes=8192 * MEBIBYTE)
SECOND = replace(HOPPER, index=1, uuid=SECOND_GPU, bus_id="0000:00:07.0")


def of_architecture(name: str, major: int, minor: int, **readings: float) -> Device:
    return replace(HOPPER, name=name, compute_capability=(major, minor), readings={"persistence": 1, **readings})


@dataclass(frozen=True, kw_only=True)
class Mode:
    """A node with three clients, and what is true of it. None: not known, so there must be no such value.

    `on` has the device of each client, by its number in `uuids`. `places` is how many clients a server accepts,
    `threads` the fraction that the server and each client may use, `others` how many clients a fault of each client
    ends too, and `sharing` how each device is shared.
    """

    devices: tuple[Device, ...] = (HOPPER,)
    uuids: tuple[str, ...] = (HOPPER.uuid,)
    on: tuple[int, int, int] = (0, 0, 0)
    branch: int = 580
    options: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    client_variables: Mapping[str, str] = field(default_factory=dict)
    client_uids: tuple[int, int, int] = (0, 0, 0)
    places: int | None = 48
    version: str | None = None
    protocol: str = "2"
    server_threads: float | None = 1.0
    client_threads: float | None = 1.0
    others: tuple[int, int, int] = (2, 2, 2)
    sharing: Mapping[str, str] = field(default_factory=lambda: {HOPPER.uuid: "mps"})
    gpm: bool = True
    shown: tuple[str, ...] = ()


PARTITIONS = json.dumps([["uid_0", HOPPER.uuid, "large", "4", "34", "false", "created", PARTITION]])


def mig(*profiles: str) -> Device:
    """Return a GPU that is divided into these instances."""
    instances = tuple(
        Instance(
            uuid=f"MIG-055a5b27-613d-8c97-6fb4-{number:012d}",
            profile=profile,
            gpu_instance=number,
            memory_used_bytes=8192 * MEBIBYTE,
            readings={"sm_utilization": 40.0},
        )
        for number, profile in enumerate(profiles, start=1)
    )
    return replace(HOPPER, readings={**GPM, "mig": 1, "persistence": 1}, instances=instances)


SEVEN, MIXED, WHOLE = mig(*["1g.18gb"] * 7), mig("3g.71gb", "2g.35gb", "1g.18gb"), mig("7g.141gb")


def in_instance(device: Device, **values: Any) -> Mode:
    """Return the mode of a daemon for the first instance of a GPU."""
    first = device.instances[0].uuid
    return Mode(devices=(device,), uuids=(first,), sharing={first: "mps"}, **values)


MODES = {
    "R470": Mode(branch=470, version="none"),
    "R515": Mode(branch=515, version="none"),
    "R535": Mode(branch=535, version="none"),
    "R550": Mode(branch=550, version="none"),
    "R565": Mode(branch=565, version="none"),
    "R575": Mode(branch=575, version="none"),
    "R580": Mode(),
    "R590": Mode(branch=590, places=60),
    "R610": Mode(branch=610, places=60),
    "R615": Mode(branch=615, places=60),
    "Pascal": Mode(devices=(of_architecture("Tesla P100", 6, 0),), places=16, gpm=False),
    "GeForce of Pascal": Mode(devices=(of_architecture("GTX 1080", 6, 1),), places=16, gpm=False),
    "Volta": Mode(devices=(of_architecture("Tesla V100", 7, 0),), gpm=False),
    "Turing": Mode(devices=(of_architecture("Tesla T4", 7, 5),), gpm=False),
    "Ampere": Mode(devices=(of_architecture("NVIDIA A100", 8, 0, mig=0),), gpm=False),
    "small Ampere": Mode(devices=(of_architecture("NVIDIA A10", 8, 6),), gpm=False),
    "Ada": Mode(devices=(of_architecture("NVIDIA L4", 8, 9),), gpm=False),
    "Blackwell": Mode(devices=(of_architecture("NVIDIA B200", 10, 0, **GPM),), branch=590, places=60),
    "RTX Blackwell": Mode(devices=(of_architecture("RTX PRO 6000", 12, 0),), branch=590, places=60, gpm=False),
    "two GPUs": Mode(
        devices=(HOPPER, SECOND),
        uuids=(HOPPER.uuid, SECOND_GPU),
        on=(0, 0, 1),
        places=None,
        others=(1, 1, 0),
        sharing={HOPPER.uuid: "mps", SECOND_GPU: "mps"},
    ),
    "seven instances": in_instance(SEVEN),
    "mixed instances": in_instance(MIXED),
    "one instance": in_instance(WHOLE),
    "one GPU with MIG": replace(
        in_instance(MIXED), devices=(MIXED, SECOND), sharing={MIXED.instances[0].uuid: "mps", SECOND_GPU: "idle"}
    ),
    "protocol 3": Mode(
        branch=615, variables={"CUDA_MPS_PROTOCOL_VERSION": "3"}, places=60, protocol="3", shown=("uid_0",)
    ),
    "static partitions": Mode(
        branch=590,
        options=("-S",),
        places=60,
        server_threads=None,
        client_threads=None,
        shown=("static SM partitions", "3; some may survive"),
    ),
    "static partitions, protocol 3": Mode(
        branch=615,
        variables={"CUDA_MPS_PROTOCOL_VERSION": "3", "STANDIN_MPS_PARTITIONS": PARTITIONS},
        client_variables={"CUDA_MPS_SM_PARTITION": f"{HOPPER.uuid}/{PARTITION}"},
        places=60,
        protocol="3",
        server_threads=None,
        client_threads=None,
        shown=("static SM partitions",),
    ),
    "one server for all users": Mode(options=("-multiuser-server",), client_uids=(0, 1000, 1001)),
    "limits": Mode(
        variables={"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"},
        client_variables={"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"},
        server_threads=0.5,
        client_threads=0.25,
    ),
    "limits, protocol 3": Mode(
        branch=615,
        variables={"CUDA_MPS_PROTOCOL_VERSION": "3", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"},
        client_variables={"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"},
        places=60,
        protocol="3",
        server_threads=0.5,
        client_threads=0.5,
    ),
    "more work queues": Mode(client_variables={"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, places=None),
}


Expected = tuple[str, Mapping[str, str], float | None]


class Node:
    """A node in a mode, with its clients."""

    def __init__(self, mode: Mode, directory: Path, nvml: NvmlStandIn, start: Starter) -> None:
        self.mode, self._nvml, self._start = mode, nvml, start
        variables = dict(mode.variables)
        self.mps = MpsStandIn(
            directory,
            gpus=mode.uuids,
            max_clients=mode.places or 48,
            variables=variables,
            options=mode.options,
            driver=mode.branch,
        )
        own = {"RUNTIME_DIRECTORY": str(directory / "run"), "STATE_DIRECTORY": str(directory / "state")}
        self.environment = self.mps.environment() | nvml.environment() | own
        self.pids: list[int] = []

    def begin(self) -> None:
        """Start the daemon and the clients."""
        self._nvml.install_driver(f"{self.mode.branch}.10", int(BINARY_VERSIONS[self.mode.branch]))
        self.mps.start()
        for device, uid in zip(self.mode.on, self.mode.client_uids, strict=True):
            self.pids.append(self._start(env=os.environ | self.mode.client_variables).pid)
            self.mps.connect_and_wait(self.pids[-1], uid=uid, devices=(device,))
        self._nvml.write([self._device(each) for each in self.mode.devices])

    def _device(self, device: Device) -> Device:
        instances = tuple(replace(each, processes=self._on(each.uuid)) for each in device.instances)
        return replace(device, instances=instances, processes=self._on(device.uuid))

    def _on(self, uuid: str) -> tuple[Process, ...]:
        if uuid not in self.mode.uuids:
            return ()
        assert self.mps.server_pid is not None
        here = [pid for pid, device in zip(self.pids, self.mode.on, strict=True) if self.mode.uuids[device] == uuid]
        clients = (Process(pid, CLIENT_MEBIBYTES * MEBIBYTE) for pid in here)
        return Process(self.mps.server_pid, SERVER_MEBIBYTES * MEBIBYTE, in_mps_list=False), *clients

    def expected(self) -> Iterator[Expected]:
        """Yield the values that are true; None if a family must have no value with these labels."""
        mode = self.mode
        yield "cuda_mps_daemon_up", {}, 1
        yield "cuda_mps_daemon_info", {"protocol": mode.protocol}, 1
        yield "cuda_mps_server_state", {"state": "active"}, 1
        yield "cuda_mps_server_clients", {}, 3
        yield "cuda_mps_server_clients_limit", {}, mode.places
        yield "cuda_mps_server_active_thread_ratio", {}, mode.server_threads
        yield (
            "cuda_mps_workload_active_thread_ratio",
            {},
            None if mode.client_threads is None else 3 * mode.client_threads,
        )
        yield "cuda_mps_bypassing_processes", {}, 0
        for uuid, sharing in mode.sharing.items():
            yield "cuda_mps_gpu_sharing_mode", {"gpu": uuid, "mode": sharing}, 1
        for number, uuid in enumerate(mode.uuids):
            memory = mode.on.count(number) * CLIENT_MEBIBYTES * MEBIBYTE
            yield "cuda_mps_client_memory_used_bytes", {"gpu": uuid}, memory

    def others(self, samples: Callable[[str], Sequence[tuple[Mapping[str, str], float]]]) -> list[float | None]:
        """Return how many other clients a fault of each client ends."""
        pids = {labels["client"]: int(labels["pid"]) for labels, _ in samples("cuda_mps_client_info")}
        found = {pids[labels["client"]]: value for labels, value in samples("cuda_mps_client_failure_domain_clients")}
        return [found.get(pid) for pid in self.pids]


@pytest.fixture
def directory() -> Iterator[Path]:
    """Make a directory that every user can reach, like those of a daemon."""
    with tempfile.TemporaryDirectory(prefix="mps") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def node(request: pytest.FixtureRequest, directory: Path, nvml: NvmlStandIn, start: Starter) -> Iterator[Node]:
    made = Node(request.param, directory, nvml, start)
    with made.mps:
        yield made


@pytest.fixture
def exporter(node: Node, tmp_path: Path) -> Iterator[Exporter]:
    """Start the service beside the node."""
    node.begin()
    running = Exporter(program.command(*SERVE, **FAST), node.environment, tmp_path / "exporter.log")
    try:
        running.address()
        yield running
        assert running.stop() == 0
        assert not running.events("source_raised")
    finally:
        running.process.kill()


Samples = Callable[[str], Sequence[tuple[Mapping[str, str], float]]]


def samples_of(text: str) -> Samples:
    """Return a function that returns the samples of a name."""
    families = list(text_string_to_metric_families(text))
    return lambda name: [
        (each.labels, each.value) for family in families for each in family.samples if each.name == name
    ]


def total(samples: Sequence[tuple[Mapping[str, str], float]], labels: Mapping[str, str]) -> float | None:
    found = [value for has, value in samples if labels.items() <= has.items()]
    return sum(found) if found else None


def assert_true(node: Node, text: str) -> None:
    """Assert that metrics have all values that are true of the node, and none that is not."""
    of = samples_of(text)
    found = [(name, labels, total(of(name), labels)) for name, labels, _ in node.expected()]
    assert found == list(node.expected())
    assert node.others(of) == list(node.mode.others)
    assert bool(of("cuda_mps_gpu_sm_utilization_ratio")) == node.mode.gpm
    assert not sum(value for _, value in of("cuda_mps_exporter_replies_unrecognized_total"))
    # What a daemon with protocol 3 writes into its log for a query is not documented.
    if node.mode.protocol != "3":
        assert not sum(value for _, value in of("cuda_mps_exporter_log_lines_unrecognized_total"))


def scraped(exporter: Exporter) -> str:
    try:
        return exporter.scrape()
    except urllib.error.HTTPError as error:
        error.close()
        raise AssertionError("no metrics yet") from error


@pytest.mark.parametrize("node", MODES.values(), ids=MODES.keys(), indirect=True)
def test_states_what_is_true_of_the_mode(node: Node, exporter: Exporter, tmp_path: Path) -> None:
    mode, file = node.mode, tmp_path / "recording.jsonl"
    record = program.command("record", str(file), "--log.format=json", **FAST)
    recorder = Exporter(record, node.environment, tmp_path / "record.log")
    try:
        eventually(lambda: assert_true(node, scraped(exporter)), every=0.2)
        eventually(lambda: assert_true(node, run(node.environment, "replay", "--metrics", str(file)).stdout), every=0.5)
    finally:
        recorder.process.send_signal(signal.SIGTERM)
        assert recorder.process.wait(PATIENCE_SECONDS) == 0

    with urllib.request.urlopen(exporter.address().removesuffix("/metrics"), timeout=PATIENCE_SECONDS) as response:
        page = response.read().decode()
    assert not [text for text in (*map(str, node.pids), *mode.shown) if text not in page]

    status = run_python(node.environment, *program.command("status", "--json", **PATIENT))
    (daemon,) = json.loads(status.stdout)["daemons"]
    (server,) = daemon["servers"]
    assert (status.returncode, daemon["state"], server["state"]) == (0, "up", "active"), status.stderr
    assert (server["clients_limit"], server["active_thread_ratio"]) == (mode.places, mode.server_threads)
    assert {each["pid"] for each in server["clients"]} == {*node.pids}

    doctor = json.loads(run_python(node.environment, *program.command("doctor", "--json", **PATIENT)).stdout)
    assert not [each["code"] for each in doctor["findings"] if each["severity"] == "critical"]


BRANCHES = sorted(BINARY_VERSIONS)


@pytest.mark.parametrize("node", [Mode(branch=branch) for branch in BRANCHES], ids=map(str, BRANCHES), indirect=True)
def test_reports_a_fault_in_the_words_of_each_driver(node: Node, exporter: Exporter) -> None:
    exporter.shows(3, "cuda_mps_server_clients")
    node.mps.fault(node.pids[0])
    exporter.shows(1, "cuda_mps_server_state", state="fault")
    exporter.shows(1, "cuda_mps_faults_total")
    eventually(lambda: assert_affected(exporter, node.pids))
    for pid in node.pids:
        node.mps.disconnect(pid)
    exporter.shows(1, "cuda_mps_server_state", state="active")
    exporter.shows(0, "cuda_mps_server_clients")
    assert exporter.value("cuda_mps_exporter_log_lines_unrecognized_total") in (None, 0)


def assert_affected(exporter: Exporter, pids: Sequence[int]) -> None:
    (incident,) = exporter.page("/api/v1/incidents")["data"]
    assert sorted(each["pid"] for each in incident["affected"]) == sorted(pids)
