"""Families of limits, GPUs, launches, the watchdog and the number of clients."""

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from exporter.history import sample_of
from exporter.metrics.catalogue import NodeCollector
from exporter.metrics.gpus import MAX_BYPASSING
from exporter.model.action import ActionKind, ActionReason, ActionResult
from exporter.model.node import Node
from exporter.model.observation import ControlReply, GpuReading
from exporter.model.settings import Limits, Mode, Thresholds
from exporter.model.watchdog import ActionCount, WatchdogPhase, WatchdogState
from exporter.report.node_status import document_of
from exporter.report.status_text import counts_text
from exporter.view import View
from exporter.watchdog.context import DaemonPolicy, Policy
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    DAEMON,
    GPU,
    GPU_BYTES,
    OTHER_GPU,
    SENSORS,
    SERVER,
    at_work,
    backing_off,
    circuit_open,
    contended,
    daemon_process,
    drifted,
    exited,
    failure,
    flight,
    gpu_reading,
    idle,
    launches_counted,
    limited,
    limited_themselves,
    look,
    no_daemon,
    node,
    process,
    quarantined,
    reduced,
    reply,
    servers,
    silence,
    split,
    suspended,
    three_clients,
    watched,
)
from tests.metrics.test_families import by, families, samples, value
from tests.works import boot_ns, reading, work

# Families of capacity, of limits and of their drift.


DRIFTED = "cuda_mps_server_limits_drifted"


def configured(limits: Limits | None, present: Node) -> Node:
    """Return a node for which these limits are configured."""
    return replace(present, watches={DAEMON: WatchdogState(wanted_limits=limits)})


def test_drift_of_a_server_and_of_the_defaults_are_independent() -> None:
    """A correct default does not prove a correct server, and vice versa."""
    assert by(drifted(), DRIFTED, "server", daemon=DAEMON) == {str(SERVER): 0, "": 1}
    other_way = configured(Limits(active_thread_percentage=25.0), limited())
    assert by(other_way, DRIFTED, "server", daemon=DAEMON) == {str(SERVER): 1, "": 0}


def test_without_configured_limits_there_is_no_drift_series() -> None:
    """Not 0 either."""
    for present in (limited(), configured(None, limited())):
        assert DRIFTED not in families(present)


def test_unknown_limits_have_no_drift_series() -> None:
    """The daemon was not queried yet."""
    present = configured(Limits(active_thread_percentage=25.0, pinned_memory={0: 1 << 30}), idle())
    assert DRIFTED not in families(present)


def test_one_drifted_limit_is_enough() -> None:
    """The memory limit of device 7 is unknown."""
    present = configured(Limits(active_thread_percentage=60.0, pinned_memory={7: 1 << 30}), limited())
    assert value(present, DRIFTED, server="") == 1


def test_drift_ends_with_the_daemon_and_the_counter_remains() -> None:
    after = reduced(no_daemon(at=AT + 20), exited(CONTROL, at=AT + 5), start=drifted()).node
    assert DRIFTED not in families(after)
    assert value(after, "cuda_mps_clients_before_limits_total", daemon=DAEMON) == 2


def test_clients_before_limits_start_at_0() -> None:
    """From the watchdog's first evaluation of the daemon."""
    assert value(configured(None, idle()), "cuda_mps_clients_before_limits_total") == 0
    assert not samples(idle(), "cuda_mps_clients_before_limits_total")


FIT = "cuda_mps_gpu_clients_fit"
THREADS, MEMORY = "cuda_mps_gpu_thread_percentage_committed_ratio", "cuda_mps_gpu_pinned_memory_committed_ratio"


def test_shows_how_many_more_clients_fit_by_each_known_bound() -> None:
    present = split(limited(), {600: flight(0.2), 601: flight(0.2)})
    assert value(present, FIT, gpu=GPU, bound="memory") == 54
    assert value(present, FIT, gpu=GPU, bound="sm") == 3
    assert value(present, FIT, gpu=GPU, bound="slots") == 46
    assert not samples(present, FIT, gpu=OTHER_GPU, bound="sm")


def test_shows_the_sum_of_limits() -> None:
    assert value(limited_themselves(), THREADS, gpu=OTHER_GPU) == 1.0
    assert value(limited_themselves(), MEMORY, gpu=OTHER_GPU) == (4 << 30) / GPU_BYTES
    assert not samples(limited_themselves(), MEMORY, gpu=GPU)


def test_the_sum_is_absent_if_a_process_may_have_set_a_smaller_limit_itself() -> None:
    assert not {THREADS, MEMORY} & families(limited()).keys()


def test_the_sum_is_absent_if_the_limits_of_a_client_are_unknown() -> None:
    """Its environment cannot be read, as in recordings of earlier versions."""
    present = reduced(process(600, environment=None), start=limited()).node
    assert not samples(present, FIT, gpu=OTHER_GPU)
    assert not {THREADS, MEMORY} & families(present).keys()


def test_limits_in_the_environment_of_a_client_count() -> None:
    present = limited_themselves("25", "1=1G")
    assert value(present, THREADS, gpu=OTHER_GPU) == 0.75
    assert value(present, MEMORY, gpu=OTHER_GPU) == (3 << 30) / GPU_BYTES


def test_shows_the_sum_of_limits_of_each_workload() -> None:
    """600 and 602 are of one workload. 600 is on both GPUs, and only the other one has a memory limit."""
    threads, memory = "cuda_mps_workload_active_thread_ratio", "cuda_mps_workload_pinned_memory_limit_bytes"
    assert by(limited(), threads, "workload", gpu=OTHER_GPU) == {"alice": 1.0}
    assert by(limited(), threads, "workload", gpu=GPU) == {"alice": 0.5, "bob": 0.5}
    assert by(limited(), memory, "workload", gpu=OTHER_GPU) == {"alice": 4 << 30}
    assert by(limited(), memory, "workload", gpu=GPU) == {}
    unknown = reduced(process(602, environment=None), start=limited()).node
    assert by(unknown, threads, "workload", gpu=OTHER_GPU) == {}
    assert memory not in families(unknown)


def test_a_gpu_without_clients_has_no_series() -> None:
    """A gauge of 0 clients that fit would read as a full GPU."""
    assert not {FIT, THREADS, MEMORY} & families(idle()).keys()


# Families of GPUs.


ALL = gpu_reading([CLIENT], **SENSORS)
FAILED = GpuReading(at=AT, gpu=GPU, problem=failure("GPU is lost"))
SENSOR_FAMILIES = {
    "cuda_mps_gpu_compute_mode",
    "cuda_mps_gpu_power_watts",
    "cuda_mps_gpu_energy_joules_total",
    "cuda_mps_gpu_sm_utilization_ratio",
    "cuda_mps_gpu_dram_bandwidth_ratio",
}


def seen(*readings: GpuReading) -> Node:
    """Return a node with a daemon, a client and these readings of NVML."""
    return reduced(*at_work(CLIENT), *readings, start=node()).node


def test_sensors_have_base_units() -> None:
    present = seen(ALL)
    assert value(present, "cuda_mps_gpu_power_watts", gpu=GPU) == 312.5
    assert value(present, "cuda_mps_gpu_energy_joules_total", gpu=GPU) == 1234.5
    assert value(present, "cuda_mps_gpu_sm_utilization_ratio", gpu=GPU) == 0.625
    assert value(present, "cuda_mps_gpu_dram_bandwidth_ratio", gpu=GPU) == 0.125


def test_exactly_one_mode_is_1() -> None:
    modes = by(seen(replace(ALL, compute_mode="exclusive_process")), "cuda_mps_gpu_compute_mode", "mode", gpu=GPU)
    assert modes == {"default": 0, "exclusive_thread": 0, "prohibited": 0, "exclusive_process": 1}
    shared = by(seen(ALL), "cuda_mps_gpu_sharing_mode", "mode", gpu=GPU)
    assert shared == {"idle": 0, "exclusive": 0, "time_slicing": 0, "mps": 1, "mig": 0, "mixed": 0}


def test_a_value_that_is_not_reported_or_of_a_failed_or_removed_gpu_has_no_series() -> None:
    bare = GpuReading(at=AT, gpu=GPU)
    assert families(seen(ALL)).keys() >= SENSOR_FAMILIES
    for present in (seen(bare, bare), seen(ALL, FAILED), reduced(look(at=AT + 60), start=seen(ALL)).node):
        assert SENSOR_FAMILIES & families(present).keys() == set()


def test_a_counter_continues_after_a_reading_without_it() -> None:
    silent = replace(ALL, energy_millijoules=None)
    assert samples(seen(ALL, silent), "cuda_mps_gpu_energy_joules_total") == []
    assert value(seen(ALL, silent, replace(ALL, energy_millijoules=500)), "cuda_mps_gpu_energy_joules_total") == 1235


def test_the_driver_has_one_series_also_after_an_upgrade() -> None:
    other = replace(ALL, gpu=OTHER_GPU, index=1)
    (sample,) = samples(seen(ALL, other), "cuda_mps_driver_info")
    assert sample.labels == {"driver": "580.159.04", "cuda": "13.0"}
    newer = replace(other, at=AT + 1, driver_version="590.44.01")
    assert set(by(seen(ALL, newer), "cuda_mps_driver_info", "driver")) == {"590.44.01"}


def test_gpu_info_has_the_bus_id_also_of_a_failed_gpu() -> None:
    for present in (seen(ALL), seen(ALL, FAILED)):
        (sample,) = samples(present, "cuda_mps_gpu_info")
        assert sample.labels == {"gpu": GPU, "index": "0", "name": "NVIDIA H200", "pci_bus_id": "00000000:00:06.0"}
    assert value(seen(ALL, FAILED), "cuda_mps_gpu_up") == 0


def test_under_mig_bypassing_processes_are_unknown() -> None:
    divided = seen(gpu_reading(server=None, **{**SENSORS, "mig_mode": True}))
    assert samples(divided, "cuda_mps_bypassing_processes") == []
    assert by(divided, "cuda_mps_gpu_sharing_mode", "mode")["mig"] == 1


def test_names_at_most_128_processes_that_bypass_mps() -> None:
    """The first that were seen have their series; hostile commands are made printable."""
    pids = range(900, 1100)
    known = [process(pid, user="eve", command="a\x1b[31m\nb") for pid in (900, 901)]
    readings = [gpu_reading([CLIENT], beside=[900], at=AT + 1)]
    readings += [gpu_reading([CLIENT], beside=pids, at=AT + second) for second in (11, 21)]
    present = reduced(*at_work(CLIENT), *known, *readings, start=node()).node
    found = samples(present, "cuda_mps_bypassing_process_info")
    assert value(present, "cuda_mps_bypassing_processes", gpu=GPU, daemon=DAEMON) == 200
    assert len(found) == MAX_BYPASSING == 128
    (first,) = [each.labels for each in found if each.labels["pid"] == "900"]
    assert (first["user"], first["gpu"], first["workload_kind"]) == ("eve", GPU, "user")
    assert first["command"].isprintable()


@pytest.mark.parametrize(("processes", "gpus"), [(1, 1), (1, 2), (1, 8), (130, 2)])
def test_a_process_that_bypasses_mps_on_several_gpus_is_on_each(processes: int, gpus: int) -> None:
    """Its PID shows that it is one. The first 128 processes have series on all of their GPUs."""
    uuids, pids = [f"GPU-{number}" for number in range(gpus)], range(900, 900 + processes)
    devices = reply("device_query --csv", "".join(f"{n},00:0{n}.0,{each},H200\n" for n, each in enumerate(uuids)))
    readings = [
        gpu_reading(beside=pids, at=AT + second, gpu=uuid, index=index)
        for second in (1, 11)
        for index, uuid in enumerate(uuids)
    ]
    present = reduced(*at_work(CLIENT), devices, *readings).node
    assert by(present, "cuda_mps_bypassing_processes", "gpu") == dict.fromkeys(uuids, processes)
    found = Counter(each.labels["pid"] for each in samples(present, "cuda_mps_bypassing_process_info"))
    assert found == dict.fromkeys(map(str, pids[:MAX_BYPASSING]), gpus)


# Families of kernel launches.


LAUNCHES = "cuda_mps_client_kernel_launches_total"
IN_FLIGHT = "cuda_mps_client_in_flight_seconds_total"
LOST = "cuda_mps_exporter_launches_lost_total"
WATCHED = "cuda_mps_client_watched_ratio"

BUSY, IDLE, UNWATCHED = "600-1aao", "601-1adg", "602-1ag8"


@pytest.fixture
def present() -> Node:
    return launches_counted()


def test_counts_kernels_and_graphs_separately_and_work_that_is_still_in_flight(present: Node) -> None:
    assert by(present, LAUNCHES, "client", kind="kernel") == {BUSY: 12_000, IDLE: 0}
    assert by(present, LAUNCHES, "client", kind="graph") == {BUSY: 40, IDLE: 0}
    assert by(present, IN_FLIGHT, "client") == {BUSY: 91.5, IDLE: 0}
    assert [samples(three_clients(), name) for name in (LAUNCHES, IN_FLIGHT, LOST)] == [[], [], []]


def test_a_client_without_probes_has_no_series(present: Node) -> None:
    later = reduced(reading(AT + 3, work(600, kernels=12_001)), start=present).node

    assert set(by(later, LAUNCHES, "client")) == {BUSY}


def test_omits_launches_of_a_previous_process_with_the_pid() -> None:
    early = reading(AT + 2, work(600, first_ns=1, kernels=9))

    assert samples(reduced(early, start=three_clients()).node, LAUNCHES) == []


def test_a_reused_pid_has_a_new_series(present: Node) -> None:
    ticks = boot_ns(AT + 3) // 10_000_000
    new = (exited(600, at=AT + 3), process(600, at=AT + 3, ticks=ticks), *at_work(600, 601, 602, at=AT + 3.5))
    seen = reading(AT + 4, work(600, first_ns=boot_ns(AT + 3.2), kernels=1), watched=(601,))
    counted = by(reduced(*new, seen, start=present).node, LAUNCHES, "client", kind="kernel")

    assert BUSY not in counted
    assert sorted(counted.values()) == [0, 1]


def test_counts_lost_launches_and_nothing_after_a_failed_collection(present: Node) -> None:
    assert value(present, LOST) == 0
    assert value(reduced(reading(AT + 3, lost=7), start=present).node, LOST) == 7
    assert samples(reduced(look(at=AT + 60), start=present).node, LAUNCHES) == []


def test_shows_for_which_part_of_the_last_minute_each_client_was_watched() -> None:
    """All of it, then half of it because of the rate limit; older readings do not count. One client has no probes."""
    whole = [reading(AT + second, watched=(600, 601)) for second in range(100, 200)]
    resting = [reading(AT + second, watched=(600, 601), seconds=float(second % 2)) for second in range(200, 301)]
    always, half = (reduced(*seen, start=three_clients()).node for seen in (whole, [*whole, *resting]))
    assert by(always, WATCHED, "client") == {BUSY: 1, IDLE: 1, UNWATCHED: 0}
    assert by(half, WATCHED, "client") == {
        BUSY: pytest.approx(0.5, abs=0.02),
        IDLE: pytest.approx(0.5, abs=0.02),
        UNWATCHED: 0,
    }


def test_a_young_client_was_watched_for_a_part_of_its_life() -> None:
    """For six of eight seconds, because it began in a pause. The time before it began does not count."""
    before = [reading(AT + second, watched=(600,)) for second in range(100, 197)]
    began = (exited(601, at=AT + 196), process(601, at=AT + 196, ticks=boot_ns(AT + 196) // 10_000_000))
    life = [reading(AT + 196 + n, watched=(600,) if n <= 2 else (600, 601)) for n in range(1, 9)]
    node = reduced(*before, *began, *at_work(600, 601, 602, at=AT + 196.5), *life, start=three_clients()).node
    assert sorted(by(node, WATCHED, "client").values()) == [0, 0.75, 1]


def test_one_reading_or_an_old_one_has_no_ratio() -> None:
    one = reduced(reading(AT + 1, watched=(600,)), start=three_clients()).node
    two = reduced(reading(AT + 2, watched=(600,)), start=one).node
    assert samples(one, WATCHED) == []
    assert by(two, WATCHED, "client")[BUSY] == 1
    assert samples(reduced(look(at=AT + 60), start=two).node, WATCHED) == []


# Families of the watchdog. Only expected daemons have them.


RESTARTS, ACTIONS = "cuda_mps_watchdog_restarts_total", "cuda_mps_watchdog_actions_total"
LEFT, NEXT = "cuda_mps_watchdog_restarts_left", "cuda_mps_watchdog_next_restart_timestamp_seconds"
OPENED = "cuda_mps_watchdog_circuit_opened_timestamp_seconds"

ACTING = Policy(mode=Mode.ACT)


def shown(present: Node, policy: Policy | None = ACTING, clock_step: float = 0.0) -> dict[tuple[str, ...], float]:
    """Return the watchdog's samples by name and labels, without the label daemon."""
    view = View(present, policy=policy, clock_step=clock_step)
    return {
        (each.name, *(value for label, value in each.labels.items() if label != "daemon")): each.value
        for metric in NodeCollector(view).collect()
        if metric.name.startswith("cuda_mps_watchdog")
        for each in metric.samples
    }


def ones(present: Node, name: str, policy: Policy | None = ACTING) -> list[str]:
    """Return the states of a state set that are 1."""
    return [key[1] for key, value in shown(present, policy).items() if key[0] == name and value == 1]


def test_without_a_watchdog_and_for_a_discovered_daemon_the_families_are_absent() -> None:
    assert shown(backing_off(), policy=None) == {}
    assert shown(reduced(*at_work(), start=node(expected=False)).node) == {}


def test_the_mode_of_the_daemon_takes_precedence() -> None:
    observing = Policy(mode=Mode.ACT, daemon_policies={DAEMON: DaemonPolicy(mode=Mode.OBSERVE)})
    assert ones(idle(), "cuda_mps_watchdog_mode") == ["act"]
    assert ones(idle(), "cuda_mps_watchdog_mode", observing) == ["observe"]


def test_shows_diagnosis_and_state_which_are_unknown_and_idle_before_the_first_evaluation() -> None:
    for present, state, diagnosis in ((idle(), "idle", "unknown"), (circuit_open(), "circuit_open", "down")):
        assert ones(present, "cuda_mps_watchdog_state") == [state]
        assert ones(present, "cuda_mps_watchdog_diagnosis") == [diagnosis]


def test_shows_the_process_of_the_diagnosis() -> None:
    assert shown(suspended())["cuda_mps_watchdog_process_info", "server_suspended", str(SERVER)] == 1
    assert not [key for key in shown(circuit_open()) if key[0] == "cuda_mps_watchdog_process_info"]


def test_restart_counters_start_at_0(subtests: pytest.Subtests) -> None:
    for reason, result in product(["down", "hung"], ActionResult):
        with subtests.test(reason=reason, result=result):
            assert shown(idle())[RESTARTS, reason, result] == 0


def test_counts_restarts_and_other_actions() -> None:
    action_counts = (
        ActionCount(kind=ActionKind.RESTART, reason=ActionReason.DOWN, result=ActionResult.BY_SYSTEMD, count=3),
        ActionCount(kind=ActionKind.KILL_CLIENTS, reason=ActionReason.FAULT, result=ActionResult.OBSERVED, count=2),
        ActionCount(kind=ActionKind.SET_LIMITS, reason="new", result=ActionResult.FAILED, count=1),
    )
    found = shown(watched(three_clients(), action_counts=action_counts))
    assert {key: value for key, value in found.items() if value and key[0] in (RESTARTS, ACTIONS)} == {
        (RESTARTS, "down", "by_systemd"): 3,
        (ACTIONS, "kill_clients", "fault", "observed"): 2,
        (ACTIONS, "set_limits", "new", "failed"): 1,
    }


def test_shows_the_remaining_restarts_of_the_window_and_none_while_the_circuit_is_open() -> None:
    two = Policy(thresholds=Thresholds(restarts=2, window=100.0))
    assert shown(idle(), two)[LEFT,] == 2
    assert shown(watched(idle(), restarts=(AT - 101, AT - 100, AT - 1)), two)[LEFT,] == 1
    assert shown(watched(idle(), restarts=(AT,) * 3), two)[LEFT,] == 0, "also if the budget was reduced since"
    assert shown(circuit_open(), Policy(thresholds=Thresholds(restarts=9)))[LEFT,] == 0
    assert shown(circuit_open())[OPENED,] == AT + 6
    assert (OPENED,) not in shown(backing_off())


def test_shows_the_next_restart_during_backoff_only() -> None:
    assert shown(backing_off(), clock_step=60.0)[NEXT,] == AT + 80, "corrected by the clock step"
    idle_again = replace(backing_off().watches[DAEMON], phase=WatchdogPhase.IDLE)
    assert (NEXT,) not in shown(replace(backing_off(), watches={DAEMON: idle_again}))


def test_shows_the_last_restart() -> None:
    assert shown(backing_off())["cuda_mps_watchdog_last_restart_timestamp_seconds",] == AT + 5
    assert ("cuda_mps_watchdog_last_restart_timestamp_seconds",) not in shown(idle())


def test_shows_since_when_and_why_a_daemon_is_quarantined() -> None:
    key = ("cuda_mps_watchdog_quarantined_timestamp_seconds", GPU, "79", "RESTART_BM")
    found = {name: value for name, value in shown(quarantined(), clock_step=60.0).items() if name[0] == key[0]}

    assert found == {key: AT + 60}
    assert ones(quarantined(), "cuda_mps_watchdog_state") == ["quarantined"]
    assert not [name for name in shown(circuit_open()) if name[0] == key[0]]


# The number of clients is shown once all clients were known. A failure never looks like an idle daemon.


FIVE = (600, 601, 602, 603, 604)
UNUSABLE = ControlReply(at=AT + 2, daemon=DAEMON, command="get_server_list", exit_code=1, stderr="Killed")


def listed(*pids: int, at: float = AT + 1) -> ControlReply:
    """The daemon's list of the server's clients."""
    text = "".join(f"{pid}\n" for pid in pids)
    return ControlReply(at=at, daemon=DAEMON, command=f"get_client_list {SERVER}", exit_code=0, stdout=text)


def values_of(node: Node, family: str) -> list[float]:
    text = generate_latest(NodeCollector(View(node))).decode()
    families = text_string_to_metric_families(text)
    return [sample.value for each in families for sample in each.samples if sample.name == family]


def test_shows_the_number_of_clients_once_it_is_known() -> None:
    seen = {
        "only a process": [daemon_process(CONTROL)],
        "only its servers": [servers(SERVER)],
        "no server": [servers()],
        "the list of clients": [servers(SERVER), listed(*FIVE)],
        "an empty list of clients": [servers(SERVER), listed()],
        "a control program that fails": [daemon_process(CONTROL), gpu_reading(FIVE), UNUSABLE],
        "a control program that hangs": [daemon_process(CONTROL), gpu_reading(FIVE), silence(at=AT + 6)],
        "a hang after the list": [servers(SERVER), listed(*FIVE), silence(at=AT + 6)],
        "a restart": [servers(SERVER), listed(*FIVE), daemon_process(CONTROL), daemon_process(CONTROL + 1, at=AT + 3)],
        "an end": [daemon_process(CONTROL), servers(SERVER), listed(*FIVE), exited(CONTROL, at=AT + 9)],
    }
    numbers = {what: reduced(*observations).node for what, observations in seen.items()}
    assert {what: values_of(node, "cuda_mps_daemon_clients") for what, node in numbers.items()} == {
        "only a process": [],
        "only its servers": [],
        "no server": [0],
        "the list of clients": [5],
        "an empty list of clients": [0],
        "a control program that fails": [],
        "a control program that hangs": [],
        "a hang after the list": [5],
        "a restart": [],
        "an end": [0],
    }
    assert values_of(numbers["only its servers"], "cuda_mps_server_clients") == []
    assert values_of(numbers["the list of clients"], "cuda_mps_server_clients") == [5]
    assert sample_of(numbers["only its servers"]).clients is None
    assert sample_of(numbers["the list of clients"]).clients == 5
    assert "at least 0 clients" in counts_text(document_of(numbers["only its servers"]))


def test_a_slowed_client_has_its_resource_and_the_neighbour_that_uses_most_of_it() -> None:
    name = "cuda_mps_client_slowdown_info"
    (sample,) = samples(contended(three_clients(), 601, 600), name)
    ids = {
        labels["pid"]: labels["client"]
        for labels in (each.labels for each in samples(three_clients(), "cuda_mps_client_info"))
    }
    assert sample.labels == {
        "daemon": DAEMON,
        "client": ids["601"],
        "gpu": GPU,
        "resource": "memory_bandwidth",
        "neighbour": ids["600"],
    }
    (doubted,) = samples(contended(three_clients(), 601, 600, dram=None), name)
    assert (doubted.labels["resource"], doubted.labels["neighbour"]) == ("other", "")
    assert not samples(three_clients(), name)
