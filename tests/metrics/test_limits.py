"""Families of capacity, of limits and of their drift."""

from dataclasses import replace

from exporter.model.node import Node
from exporter.model.settings import Limits
from exporter.model.watchdog import WatchdogState
from tests.builders import (
    AT,
    CONTROL,
    DAEMON,
    GPU,
    GPU_BYTES,
    OTHER_GPU,
    SERVER,
    drifted,
    exited,
    flight,
    idle,
    limited,
    limited_themselves,
    no_daemon,
    process,
    reduced,
    split,
)
from tests.metrics.test_families import by, families, samples, value

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
    assert value(present, FIT, gpu=GPU, bound="slots") == 45
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
