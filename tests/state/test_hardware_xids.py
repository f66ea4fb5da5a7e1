"""An Xid of hardware is a problem for the metrics, the alert and the findings alike, until a reset or `resume`."""

from collections.abc import Collection
from dataclasses import replace

import pytest

from exporter.demo.scenario import initial_node
from exporter.demo.simulation import Simulation, advance
from exporter.metrics.catalogue import NodeCollector
from exporter.model.incident import RecoveryAction, Xids
from exporter.model.node import Node
from exporter.model.observation import KernelRecord, Observation, Paused, Resumed
from exporter.model.watchdog import Quarantine
from exporter.report.node_findings import findings
from exporter.report.problems import NodeProblem
from exporter.view import View
from exporter.watchdog.evaluation import evaluate
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    DAEMON,
    GPU,
    MIG_LAYOUT,
    MIG_UUIDS,
    OTHER_GPU,
    at_work,
    daemon_process,
    exited,
    gpu_reading,
    look,
    mig,
    reduced,
    watched,
)
from tests.clocks import HandClock
from tests.simulated import POLICY
from tests.state.xid_reports import ADDRESS, TWO_GPUS, at_address, kernel

HOUR = 3600.0


def shown(node: Node) -> Collection[tuple[str, str]]:
    """Return the GPUs and actions of the metric, which must be those of the findings."""
    name = "cuda_mps_gpu_hardware_xid_timestamp_seconds"
    samples = (each for metric in NodeCollector(View(node)).collect() for each in metric.samples if each.name == name)
    labels = {(each.labels["gpu"], each.labels["action"]) for each in samples}
    problems = {
        (each.gpu, each.problem)
        for each in findings(node, node.at)
        if each.problem in (NodeProblem.GPU_RESET_NEEDED, NodeProblem.HARDWARE_XID)
    }
    assert problems == {
        (gpu, NodeProblem.GPU_RESET_NEEDED if action else NodeProblem.HARDWARE_XID) for gpu, action in labels
    }
    return labels


def after(*seen: Observation, at: float = AT + 10) -> Collection[tuple[str, str]]:
    return shown(reduced(*TWO_GPUS, *seen, look(at=at)).node)


def test_needs_a_reset_until_an_operator_resumes() -> None:
    uncontained, resumed = kernel(95, at=AT + 1), Paused(at=AT + 7, paused=False)

    assert after(uncontained) == {(GPU, "RESET_GPU")}
    assert after(uncontained, at=AT + 3 * HOUR) == {(GPU, "RESET_GPU")}
    assert after(uncontained, Paused(at=AT + 5, paused=True)) == {(GPU, "RESET_GPU")}
    assert after(uncontained, Paused(at=AT + 5, paused=True), resumed) == set()
    assert after(uncontained, resumed, kernel(95, at=AT + 8)) == {(GPU, "RESET_GPU")}


def test_an_operator_resumes_a_daemon_whose_new_process_has_no_known_gpus() -> None:
    """Before R580, only clients show the GPUs of a daemon, and it was restarted after the reset."""
    damaged = reduced(*TWO_GPUS, daemon_process(), *at_work(CLIENT), kernel(95, at=AT + 1), look(at=AT + 4)).node
    quarantine = Quarantine(at=AT + 1, xid=95, gpu=GPU, action="RESET_GPU")
    reset = replace(watched(damaged, quarantine=quarantine), at=AT + 5)
    restarted = reduced(exited(CONTROL, at=AT + 6), daemon_process(CONTROL + 1, at=AT + 7), start=reset).node
    assert shown(restarted) == set(), "the quarantine reports it"

    resumed = reduced(Resumed(at=AT + 8, daemon=DAEMON), start=restarted).node
    assert shown(resumed) == set()
    assert shown(reduced(kernel(95, at=AT + 9), look(at=AT + 14), start=resumed).node) == {(GPU, "RESET_GPU")}


def recovery(text: str, at: float) -> KernelRecord:
    return KernelRecord(
        at=at, record=f"4,1,1,c;NVRM: Xid (PCI:{ADDRESS}): 154, GPU recovery action changed from 0x1 (A) to {text}"
    )


def test_needs_a_reset_until_the_driver_needs_none() -> None:
    uncontained, demand = kernel(95, at=AT + 1), recovery("0x2 (Node Reboot Required)", AT + 2)

    assert after(uncontained, demand) == {(GPU, "RESTART_BM")}
    assert after(uncontained, demand, recovery("0x0 (None)", AT + 5)) == set()
    assert after(uncontained, recovery("0x4 (Drain and Reset)", AT + 5)) == {(GPU, "RESET_GPU")}


def test_a_smaller_energy_counter_shows_a_reset() -> None:
    energies = [gpu_reading(at=AT + at, energy_millijoules=energy) for at, energy in ((2, 900), (4, 950), (6, 20))]

    assert after(kernel(95, at=AT + 1), *energies[:2]) == {(GPU, "RESET_GPU")}
    assert after(kernel(95, at=AT + 1), *energies) == set()
    assert after(kernel(95, at=AT + 5), *energies) == {(GPU, "RESET_GPU")}, "it may be later than the reset"
    assert after(recovery("0x1 (GPU Reset Required)", AT + 5), *energies) == {(GPU, "RESET_GPU")}, "so may the demand"
    wrong = [gpu_reading(at=AT + at, energy_millijoules=energy) for at, energy in ((2, 9**11), (4, 9**15), (6, 9**11))]
    assert after(kernel(95, at=AT + 1), *wrong) == {(GPU, "RESET_GPU")}, "a value that cannot be true is no reset"


def test_a_reset_of_one_gpu_is_none_of_another() -> None:
    other = kernel(95, at=AT + 1, address="0000:00:07")

    assert after(kernel(95, at=AT + 1), other, recovery("0x0 (None)", AT + 5)) == {(OTHER_GPU, "RESET_GPU")}


def test_an_xid_without_an_urgent_action_is_a_problem_for_an_hour() -> None:
    replaced = kernel(63, at=AT + 1)

    assert after(replaced) == {(GPU, "")}
    assert after(replaced, at=AT + HOUR + 2) == set()
    assert after(replaced, Paused(at=AT + 5, paused=False)) == set()


def test_an_xid_of_a_program_is_no_problem() -> None:
    assert after(kernel(31, at=AT + 1), kernel(109, at=AT + 1)) == set()


def test_a_gpu_is_one_problem_whatever_the_number_of_its_xids() -> None:
    assert after(kernel(119, at=AT + 1), kernel(95, at=AT + 2), kernel(95, at=AT + 3)) == {(GPU, "RESET_GPU")}


def of_instance(number: int) -> KernelRecord:
    address = f"PCI:{ADDRESS} GPU-I:{MIG_LAYOUT[0][0]:02d}"
    return KernelRecord(at=AT + 1, record=f"4,1,1,c;NVRM: Xid ({address}): {number}, pid=600, name=train, Ch 8")


def test_an_error_of_a_mig_instance_is_one_problem_of_its_gpu() -> None:
    """The driver reports the error of the instance, and then what its GPU needs: only that can be reset."""
    start = reduced(KernelRecord(at=AT, record=f"6,1,1,c;NVRM: GPU at PCI:{ADDRESS}: {GPU}"), start=mig()).node
    demand = recovery("0x1 (GPU Reset Required)", AT + 1.1)
    damaged = reduced(of_instance(95), demand, look(at=AT + 10), start=start).node
    assert shown(damaged) == {(GPU, "RESET_GPU")}
    assert shown(reduced(of_instance(95), look(at=AT + 10), start=start).node) == {(GPU, "RESET_GPU")}
    contained = reduced(of_instance(94), look(at=AT + 10), start=start).node
    assert shown(contained) == {(MIG_UUIDS[0], "")}

    quarantined, _, _ = evaluate(damaged, POLICY, at=AT + 10, chance=0.0)
    assert shown(quarantined) == set()
    assert [each.quarantine and each.quarantine.gpu for each in quarantined.watches.values()] == [GPU]
    assert shown(reduced(Resumed(at=AT + 20, daemon=DAEMON), start=quarantined).node) == set()


def test_a_gpu_of_an_unknown_address_is_a_problem_too() -> None:
    assert after(kernel(95, at=AT + 1, address="0000:00:09")) == {("PCI:0000:00:09", "RESET_GPU")}


@pytest.mark.parametrize("seconds", [30, 300])
def test_the_history_of_the_demo_has_no_problem_that_is_over(seconds: int) -> None:
    """It had an Xid 95 and a quarantine, which an operator ended before the first scrape."""
    clock, node = HandClock(AT), initial_node()
    simulation = Simulation(1, clock)
    clock.time += seconds
    for second in advance(node, simulation, POLICY):
        node, _ = second

    assert any(number == "95" for _, number in node.xids.counts)
    assert shown(node) == set()


def test_the_demand_of_the_driver_is_enough() -> None:
    demanding = replace(
        reduced(at_address(), look()).node, xids=Xids(recovery_actions={GPU: RecoveryAction(at=AT, action="RESET_GPU")})
    )

    assert shown(demanding) == {(GPU, "RESET_GPU")}
