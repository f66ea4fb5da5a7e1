"""The program as users run it with `--attribution=bpf`: clients are charged by their launches."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.libcuda_probes.loader import Kernel
from exporter.report.process_status import EARLIER
from tests.conftest import Starter
from tests.eventually import eventually
from tests.exporter_process import GPU, Exporter, fast_command, run
from tests.standin.mps import MpsStandIn
from tests.standin.nvml import MEBIBYTE, Device, NvmlStandIn, Process
from tests.tools import needed

from .kernel_objects import bpf_objects_of, exists
from .standin import Program, StandInCuda, Work, code_at

pytestmark = pytest.mark.systems

BUSY = 40
"""Percent of the SMs."""

FOREVER = Work(mode="loop", count=10**9, launches=100, each=1, nanoseconds=2_000_000)
SM, ENERGY = "cuda_mps_workload_sm_seconds_total", "cuda_mps_workload_energy_joules_total"
TOTALS = {
    SM: ("cuda_mps_gpu_sm_seconds_total", "cuda_mps_gpu_closed_sm_seconds_total"),
    ENERGY: ("cuda_mps_gpu_accounted_energy_joules_total", "cuda_mps_gpu_closed_energy_joules_total"),
}

Clients = Callable[[int], list[Program]]
Serve = Callable[..., Exporter]


@pytest.fixture
def serve(environment: dict[str, str], tmp_path: Path) -> Iterator[Serve]:
    """Start the program. Unless the test killed it, it must exit with 0."""
    started: list[Exporter] = []

    def start(*attribution: str, by: Sequence[str] = ()) -> Exporter:
        command = fast_command("serve", *attribution)
        started.append(Exporter(command, environment, tmp_path / f"exporter{len(started)}.log", by=by))
        started[-1].shows(None, "nothing_of_the_kind")
        return started[-1]

    try:
        yield start
        for exporter in started:
            assert exporter.process.poll() is not None or exporter.stop() == 0
            assert not exporter.events("source_raised")
    finally:
        for exporter in started:
            exporter.process.kill()


@pytest.fixture
def clients(cuda: StandInCuda, mps: MpsStandIn, nvml: NvmlStandIn) -> Iterator[Clients]:
    """Start clients that launch continuously on a busy GPU. Each uses twice as many SMs as the one before."""
    with ExitStack() as running:

        def start(count: int) -> list[Program]:
            mps.start()
            blocks = [16 << number for number in range(count)]
            programs = [running.enter_context(cuda.started(replace(FOREVER, blocks=each))) for each in blocks]
            for program in programs:
                mps.connect_and_wait(program.pid)
                program.go()
            write_gpu(nvml, mps, programs, joules=1000)
            return programs

        yield start


def write_gpu(nvml: NvmlStandIn, mps: MpsStandIn, programs: list[Program], joules: int) -> None:
    assert mps.server_pid is not None
    server = Process(mps.server_pid, 66 * MEBIBYTE, in_mps_list=False, sm_percent=BUSY)
    device = Device(
        processes=(server, *(Process(program.pid) for program in programs)),
        memory_used_bytes=8192 * MEBIBYTE,
        energy_millijoules=1000 * joules,
        readings={"sm_utilization": BUSY, "dram_bandwidth": 10},
    )
    nvml.write([device])


def grown(exporter: Exporter, name: str, over: float, **labels: str) -> float:
    """Wait until a value has grown by more than `over`, and return the difference."""
    before = exporter.value(name, **labels) or 0.0

    def more() -> float:
        by = (exporter.value(name, **labels) or 0.0) - before
        assert by > over, f"{name} {labels}: {by}"
        return by

    return eventually(more, every=0.2)


def shares(exporter: Exporter) -> dict[int, tuple[str, float]]:
    who = {labels["client"]: int(labels["pid"]) for labels, _ in exporter.samples("cuda_mps_client_info")}
    used = exporter.samples("cuda_mps_client_sm_utilization_ratio", gpu=GPU)
    return {who[labels["client"]]: (labels["method"], value) for labels, value in used if labels["client"] in who}


def shared_by(exporter: Exporter, method: str, programs: list[Program]) -> dict[int, float]:
    def reported() -> dict[int, float]:
        found = shares(exporter)
        assert {pid: how for pid, (how, _) in found.items()} == {program.pid: method for program in programs}
        return {pid: used for pid, (_, used) in found.items()}

    return eventually(reported, every=0.2)


def assert_conserved(exporter: Exporter) -> None:
    """Assert that the parts of the workloads add up to the total in one scrape."""
    text = exporter.scrape()
    for parts, (whole, closed) in TOTALS.items():
        values = {name: sum(numbers(text, name)) for name in (parts, whole, closed)}
        assert values[parts] + values[closed] == pytest.approx(values[whole], abs=1e-5)
        assert values[parts] > 0 or parts == ENERGY


def numbers(text: str, name: str) -> list[float]:
    return [float(line.split()[-1]) for line in text.splitlines() if line.split("{")[0].split(" ")[0] == name]


def test_charges_two_clients_by_their_launches(
    kernel: Kernel, clients: Clients, serve: Serve, mps: MpsStandIn, nvml: NvmlStandIn
) -> None:
    programs = clients(2)
    exporter = serve("bpf")
    narrow, wide = (shared_by(exporter, "flight", programs)[each.pid] for each in programs)
    for program in programs:
        (client,) = [labels["client"] for labels, _ in exporter.samples("cuda_mps_client_info", pid=str(program.pid))]
        assert grown(exporter, "cuda_mps_client_kernel_launches_total", 0, client=client, kind="kernel") > 0
        assert grown(exporter, "cuda_mps_client_in_flight_seconds_total", 0, client=client) > 0
    write_gpu(nvml, mps, programs, joules=5000)
    grown(exporter, SM, 0.5, method="flight")
    eventually(lambda: assert_all_attributed(exporter, "flight"), every=0.2)

    assert narrow < wide
    exporter.shows(4000, "cuda_mps_gpu_accounted_energy_joules_total")
    assert_conserved(exporter)
    exporter.shows(1, "cuda_mps_exporter_source_up", source="libcuda_probes")
    assert exporter.value("cuda_mps_exporter_launches_lost_total") == 0
    ratios = [ratio for _, ratio in exporter.samples("cuda_mps_client_watched_ratio")]
    assert ratios == pytest.approx([1.0, 1.0], abs=0.5)


def test_continues_the_accounts_after_the_exporter_was_killed(
    kernel: Kernel, clients: Clients, serve: Serve, cuda: StandInCuda, mps: MpsStandIn
) -> None:
    """Kernels that a client got before are unknown."""
    programs = clients(2)
    exporter = serve("bpf")
    grown(exporter, SM, 0.2, method="flight")
    held, offset = bpf_objects_of(exporter.process.pid), cuda.offsets()["cuLaunchKernel"]
    written = cuda.library.read_bytes()[offset : offset + 8]
    assert code_at(programs[0].pid, cuda.library, offset, 8) != written
    before = exporter.value(SM, method="flight") or 0.0

    exporter.process.kill()
    exporter.process.wait()

    eventually(lambda: assert_objects_removed(held))
    for program in programs:
        eventually(lambda pid=program.pid: assert_original_code(pid, cuda, offset, written))
    again = serve("bpf")
    eventually(lambda: assert_at_least(again, before), every=0.2)
    grown(again, SM, 0.2, method="flight")
    with cuda.started(FOREVER, TARGET_HANDLES="1") as later:
        mps.connect_and_wait(later.pid)
        later.go()
        eventually(lambda: assert_kernels(again, later, "kernel_2000000"), every=0.2)
        assert_kernels(again, programs[0], None)
    assert_conserved(again)


def test_charges_a_single_client_by_measurement(kernel: Kernel, clients: Clients, serve: Serve) -> None:
    programs = clients(1)
    exporter = serve("bpf")
    shared_by(exporter, "measured", programs)
    eventually(lambda: assert_all_attributed(exporter, "measured"), every=0.2)


def test_usage_is_unattributed_without_attribution(clients: Clients, serve: Serve) -> None:
    clients(2)
    exporter = serve()
    eventually(lambda: assert_unattributed(exporter), every=0.2)
    assert exporter.value(SM, method="flight") is None
    assert exporter.value("cuda_mps_exporter_source_up", source="libcuda_probes") is None


def test_reports_refused_bpf_and_all_other_metrics(
    clients: Clients, serve: Serve, environment: dict[str, str], start: Starter
) -> None:
    """The exporter runs without capabilities. `status` must not recommend an option that is already on."""
    programs = clients(2)
    exporter = serve("bpf", by=without_rights())
    exporter.shows(0, "cuda_mps_exporter_source_up", source="libcuda_probes")
    exporter.shows(2, "cuda_mps_server_clients")
    exporter.shows(BUSY / 100, "cuda_mps_gpu_sm_utilization_ratio")
    eventually(lambda: assert_unattributed(exporter), every=0.2)

    (problem,) = [each for each in exporter.events("source_problem") if each.get("source") == "libcuda_probes"]
    assert problem["problem"] == "probes_refused"
    assert "BPF" in problem["text"] or "bpf" in problem["text"]
    shown = run(environment, "status").stdout
    assert "SM time by client is not known: " in shown
    assert "--attribution=bpf" not in shown.replace("doctor --attribution=bpf", "")
    assert f"libcuda_probes: {problem['text']}" in shown
    assert all(program.process.poll() is None for program in programs)


def without_rights() -> Sequence[str]:
    return (needed("setpriv"), "--bounding-set", "-all", "--inh-caps", "-all") if os.geteuid() == 0 else ()


def assert_unattributed(exporter: Exporter) -> None:
    assert exporter.value("cuda_mps_gpu_sm_unattributed_ratio") == pytest.approx(BUSY / 100)


def assert_all_attributed(exporter: Exporter, method: str) -> None:
    """Assert that between two scrapes the clients are charged for the GPU's use."""
    before = exporter.scrape()
    grown(exporter, SM, 0.3, method=method)
    after = exporter.scrape()
    parts, whole = (sum(numbers(after, name)) - sum(numbers(before, name)) for name in (SM, TOTALS[SM][0]))
    theirs = paid(after, method) - paid(before, method)
    assert parts == pytest.approx(whole, abs=1e-5)
    assert theirs > 0.98 * whole


def paid(text: str, method: str) -> float:
    found = [line for line in text.splitlines() if line.startswith(f"{SM}{{") and f'method="{method}"' in line]
    return sum(float(line.split()[-1]) for line in found)


def assert_objects_removed(held: set[tuple[str, int]]) -> None:
    assert held
    assert not [each for each in held if exists(*each)]


def assert_original_code(pid: int, cuda: StandInCuda, offset: int, written: bytes) -> None:
    assert code_at(pid, cuda.library, offset, 8) == written


def assert_kernels(exporter: Exporter, program: Program, name: str | None) -> None:
    """Assert that the status has one kernel of a client, with this name, or None and a reason."""
    daemons = exporter.page("/api/v1/status")["data"]["daemons"]
    clients = (client for daemon in daemons for server in daemon["servers"] for client in server["clients"])
    known = {client["pid"]: (client["kernels"], client.get("kernels_problem")) for client in clients}
    kernels, problem = known.get(program.pid) or ((), None)
    names = [kernel.get("name", {}).get("raw") for kernel in kernels]
    assert (names, problem) == ([name], None if name else EARLIER)


def assert_at_least(exporter: Exporter, before: float) -> None:
    """Assert that the total did not decrease: metrics show only what was stored."""
    assert (exporter.value(SM, method="flight") or 0.0) >= before
