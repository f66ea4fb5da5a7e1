"""What a client may use of each GPU: SMs of its percentage, and memory limits by its own device numbers."""

import json
import sys
from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from exporter.doctor.facts import Check, ProcessFacts
from exporter.doctor.gpus import memory_limit_without_effect, visible_devices_wrong
from exporter.model.node import Node
from exporter.model.settings import ACTIVE_THREAD_PERCENTAGE, PINNED_MEMORY_LIMIT, VISIBLE_DEVICES
from exporter.parse.mps_variables import sms_of
from exporter.report.problem import Severity
from exporter.state.limits import memory_limits_by_gpu
from exporter.usage.capacity import ClientUsage, gpu_sharing
from tests.builders import (
    AT,
    CLIENT,
    DAEMON,
    at_work,
    daemon_process,
    flight,
    gpu_reading,
    process,
    reduced,
    reply,
    server_log,
    split,
)
from tests.doctor.healthy import healthy
from tests.status import status_json, status_table

GIB = 1 << 30
UUIDS = tuple(f"GPU-{number}f8b2f04-0000-0000-0000-000000000000" for number in range(4))
CONTAINER = f"0::/system.slice/docker-{'1f' * 32}.scope\n"
JOB = "0::/system.slice/slurmstepd.scope/job_7\n"
Environment = Mapping[str, str] | None


def node_of(
    environments: Sequence[Environment],
    *,
    gpus: int = 2,
    on: Sequence[int] | None = None,
    defaults: Sequence[int] = (),
    percentage: float = 100.0,
    sms: int | None = 132,
    cgroup: str | None = None,
    driver: str = "580.159.04",
    names: Sequence[str] = ("NVIDIA H200",) * 4,
) -> Node:
    """Return a node whose clients have contexts `on` these GPUs, and limits in GiB by device. 0: no limit.

    The daemon's own CUDA_VISIBLE_DEVICES names its GPUs in the opposite order.
    """
    pids = range(CLIENT, CLIENT + len(environments))
    log = [f"Active Threads Percentage set to {percentage}"]
    log += [
        f"Device pinned memory limit for device {device} set to {size * GIB:#x} bytes"
        for device, size in enumerate(defaults)
        if size
    ]
    reversed_list = "".join(
        f"{ordinal},00:0{ordinal}.0,{uuid},NVIDIA H200\n" for ordinal, uuid in enumerate(reversed(UUIDS[:gpus]))
    )
    known = [process(pid, environment=each, cgroup=cgroup) for pid, each in zip(pids, environments, strict=True)]
    readings = [
        gpu_reading(
            pids if on is None or index in on else (),
            gpu=uuid,
            index=index,
            at=at,
            sms=sms,
            driver_version=driver,
            name=names[index],
        )
        for at in (AT, AT + 2)
        for index, uuid in enumerate(UUIDS[:gpus])
    ]
    devices = reply("device_query --csv", reversed_list)
    return reduced(*at_work(*pids), daemon_process(), *server_log(*log), *known, devices, *readings).node


def client_on(gpu: int, environment: Environment, **changes: Any) -> ClientUsage:
    """Return a client on one GPU."""
    present = node_of([environment], **({"on": (gpu,)} | changes))
    (client,) = gpu_sharing(present)[UUIDS[gpu]].clients
    return client


def clients_on(order: Sequence[int], environment: Environment, **changes: Any) -> list[ClientUsage]:
    """Return a client on several GPUs, in this order."""
    sharing = gpu_sharing(node_of([environment], on=order, **changes))
    return [sharing[UUIDS[gpu]].clients[0] for gpu in order]


# SMs of an active thread percentage.


def test_a_percentage_is_an_even_number_of_sms_and_at_least_8(subtests: pytest.Subtests) -> None:
    """Measured on an H200."""
    for percentage, sms in [(1, 8), (2, 8), (5, 8), (10, 12), (25, 32), (33, 42), (50, 66), (99, 130), (0.1, 8)]:
        with subtests.test(percentage=percentage):
            assert sms_of(percentage, 132) == sms


@pytest.mark.parametrize("sms", [16, 26, 32, 46, 60, 78, 108, 114, 132, 142, 148])
def test_each_percentage_of_each_gpu_is_close_to_its_fraction(sms: int) -> None:
    given = [sms_of(percentage, sms) for percentage in range(1, 100)]
    assert given == sorted(given, key=lambda number: number or 0)
    for percentage, number in enumerate(given, start=1):
        assert number is not None
        assert number % 2 == 0
        assert number == 8 or 100 * number <= percentage * sms < 100 * (number + 2)
    assert sms_of(100, sms) is None


def test_no_client_gets_more_sms_than_there_are() -> None:
    assert sms_of(50, 4) == 4


@pytest.mark.parametrize(("own", "of_server"), [({ACTIVE_THREAD_PERCENTAGE: "1"}, 100.0), ({}, 1.0)])
def test_20_clients_of_1_percent_may_use_160_sms(own: Mapping[str, str], of_server: float) -> None:
    sharing = gpu_sharing(node_of([own] * 20, percentage=of_server, on=(0,)))[UUIDS[0]]
    assert sharing.threads_committed == pytest.approx(160 / 132)
    assert {each.threads for each in sharing.clients} == {8 / 132}


def test_a_percentage_remains_one_if_the_number_of_sms_is_unknown() -> None:
    client = client_on(0, {ACTIVE_THREAD_PERCENTAGE: "1"}, sms=None)
    assert (client.threads, client.threads_certain) == (0.01, True)


def test_a_client_without_a_percentage_may_have_set_one_itself(subtests: pytest.Subtests) -> None:
    for environment, percentage, threads, certain in [
        ({}, 100.0, 1.0, False),
        ({}, 50.0, 0.5, False),
        ({ACTIVE_THREAD_PERCENTAGE: "20"}, 50.0, 26 / 132, True),
        ({ACTIVE_THREAD_PERCENTAGE: "100"}, 50.0, 0.5, True),
        # It can have no fewer SMs.
        ({}, 5.0, 8 / 132, True),
        (None, 50.0, None, False),
    ]:
        with subtests.test(environment=environment, percentage=percentage):
            present = node_of([environment], percentage=percentage, on=(0,))
            sharing = gpu_sharing(present)[UUIDS[0]]
            (client,) = sharing.clients
            assert (client.threads, client.threads_certain) == (threads, certain)
            assert sharing.threads_at_most == threads
            assert sharing.threads_committed == (threads if certain else None)


# Memory limits.


def test_default_limits_are_by_the_numbers_of_the_client(subtests: pytest.Subtests) -> None:
    for gpus in (2, 4):
        for length in range(1, gpus + 1):
            for order in permutations(range(gpus), length):
                visible = ",".join(map(str, order))
                with subtests.test(gpus=gpus, visible=visible):
                    found = clients_on(order, {VISIBLE_DEVICES: visible}, gpus=gpus, defaults=(6, 3, 4, 5))
                    assert [each.memory_limit for each in found] == [6 * GIB, 3 * GIB, 4 * GIB, 5 * GIB][:length]
                    assert {(each.memory_limit_known, each.memory_limit_certain) for each in found} == {(True, False)}


def test_own_limits_are_by_the_numbers_of_the_client(subtests: pytest.Subtests) -> None:
    for gpus in (2, 4):
        for order in permutations(range(gpus)):
            for visible in (",".join(map(str, order)), ",".join(UUIDS[gpu] for gpu in order)):
                for number in range(gpus):
                    own = {VISIBLE_DEVICES: visible, PINNED_MEMORY_LIMIT: f"{number}=2G"}
                    with subtests.test(gpus=gpus, visible=visible, own=number):
                        found = clients_on(order, own, gpus=gpus)
                        assert [each.memory_limit for each in found] == [
                            2 * GIB if each == number else None for each in range(gpus)
                        ]
                        assert all(each.memory_limit_known and each.memory_limit_certain for each in found)


def test_a_client_without_the_variable_counts_all_gpus_in_the_order_of_the_node() -> None:
    own = {PINNED_MEMORY_LIMIT: "1=2G"}
    found = [client_on(gpu, own, on=(0, 1), defaults=(6, 3)).memory_limit for gpu in (0, 1)]
    assert found == [6 * GIB, 2 * GIB]
    present = node_of([{}], defaults=(6, 3))
    assert dict(memory_limits_by_gpu(present, present.daemons[DAEMON], {0: 6, 1: 3})) == {UUIDS[0]: 6, UUIDS[1]: 3}


def test_a_client_has_no_limit_if_its_own_names_only_devices_that_it_does_not_see(subtests: pytest.Subtests) -> None:
    """Then its daemon's limit does not apply either (measured)."""
    for own, defaults, expected in [
        ("1=2G", (), (True, None)),
        ("1=2G", (6, 3), (True, None)),
        ("1=2G,7=1G", (6, 3), (True, None)),
        ("0=2G", (6, 3), (True, 2 * GIB)),
        ("0=2G,1=2G", (), (False, None)),
        ("0=2G,1=2G", (6, 3), (False, None)),
        (f"{UUIDS[0]}=2G", (), (True, None)),
        (f"{UUIDS[0]}=2G", (6, 3), (True, None)),
        (f"{UUIDS[1]}=2G", (6, 3), (True, 2 * GIB)),
    ]:
        for driver in ("580.159.04", "615.71"):
            with subtests.test(own=own, defaults=defaults, driver=driver):
                variables = {VISIBLE_DEVICES: "1", PINNED_MEMORY_LIMIT: own}
                client = client_on(1, variables, defaults=defaults, driver=driver)
                assert (client.memory_limit_known, client.memory_limit) == expected


def test_the_limit_is_unknown_if_the_numbers_of_the_client_are(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, Environment, dict[str, Any]]] = [
        ("unreadable", None, {}),
        ("a container", {}, {"cgroup": CONTAINER}),
        ("a container with its own limit", {PINNED_MEMORY_LIMIT: "0=1G"}, {"cgroup": CONTAINER}),
        ("a job", {VISIBLE_DEVICES: "0"}, {"cgroup": JOB}),
        ("the process has changed the variable", {VISIBLE_DEVICES: "0"}, {}),
        ("different GPUs", {}, {"on": (0, 1), "names": ("NVIDIA H200", "NVIDIA L4")}),
    ]
    for case, environment, changes in cases:
        with subtests.test(case=case):
            client = client_on(1, environment, defaults=(6, 3), **changes)
            assert (client.memory_limit_known, client.memory_limit) == (False, None)


def test_equal_limits_of_all_devices_are_known_in_a_container() -> None:
    client = client_on(1, {}, cgroup=CONTAINER, defaults=(4, 4))
    assert (client.memory_limit_known, client.memory_limit) == (True, 4 * GIB)


def test_a_container_that_names_its_gpus_by_uuid_has_known_numbers() -> None:
    client = client_on(1, {VISIBLE_DEVICES: UUIDS[1]}, cgroup=CONTAINER, defaults=(6, 3))
    assert client.memory_limit == 6 * GIB


def test_a_client_that_may_have_hidden_gpus_or_changed_their_order_has_the_largest_limit_at_most(
    subtests: pytest.Subtests,
) -> None:
    """With CUDA_VISIBLE_DEVICES=1,0 set inside the process, GPU 1 is its device 0 (measured)."""
    for on, defaults, expected in [
        ((1,), (6, 3), [(True, 6)]),
        ((1,), (0, 3), [(False, None)]),
        ((0,), (6, 3), [(True, 6)]),
        ((0,), (6, 0), [(True, 6)]),
        ((0, 1), (6, 3), [(True, 6), (True, 6)]),
        ((0, 1), (3, 6), [(True, 6), (True, 6)]),
        ((0, 1), (6, 0), [(False, None), (False, None)]),
        ((0, 1), (4, 4), [(True, 4), (True, 4)]),
        ((0, 1), (), [(True, None), (True, None)]),
    ]:
        with subtests.test(on=on, defaults=defaults):
            found = clients_on(on, {}, defaults=defaults)
            expected_bytes = [(known, limit and limit * GIB) for known, limit in expected]
            assert [(each.memory_limit_known, each.memory_limit) for each in found] == expected_bytes
            assert not any(each.memory_limit_certain for each in found)


def test_own_limits_are_uncertain_if_another_order_gives_others(subtests: pytest.Subtests) -> None:
    """They are those of the order with which the process was started, or unknown."""
    for on, own, defaults, expected in [
        ((0, 1), "0=2G", (), [(2, True, False), (None, False, False)]),
        ((0, 1), "0=2G,1=3G", (), [(2, True, False), (3, True, False)]),
        ((0, 1), "0=2G,1=2G", (), [(2, True, True), (2, True, True)]),
        ((0, 1), "0=2G", (6, 4), [(2, True, False), (4, True, False)]),
        ((0,), "0=2G", (), [(2, True, True)]),
        ((1,), "0=2G", (), [(None, False, False)]),
        ((1,), "1=3G", (), [(3, True, False)]),
        # If it has hidden the other GPU, its own limits name a device that it does not see.
        ((0,), "0=2G,1=2G", (), [(2, True, False)]),
    ]:
        with subtests.test(on=on, own=own, defaults=defaults):
            found = clients_on(on, {PINNED_MEMORY_LIMIT: own}, defaults=defaults)
            assert [
                (each.memory_limit and each.memory_limit // GIB, each.memory_limit_known, each.memory_limit_certain)
                for each in found
            ] == expected


def test_a_client_that_holds_more_than_its_own_limit_has_changed_the_order_of_its_gpus() -> None:
    variables = {PINNED_MEMORY_LIMIT: "0=2G"}
    for mebibytes, limit in [(2600, 2 * GIB), (3000, None)]:
        readings = (gpu_reading({CLIENT: mebibytes}, gpu=uuid, index=index) for index, uuid in enumerate(UUIDS[:2]))
        sharing = gpu_sharing(reduced(*readings, start=node_of([variables], on=(0, 1))).node)[UUIDS[0]]
        assert [each.memory_limit for each in sharing.clients] == [limit]
        assert not sharing.over_limit


def test_the_sum_of_memory_limits_is_unknown_if_a_process_may_have_set_a_smaller_one() -> None:
    own = {PINNED_MEMORY_LIMIT: "0=1G"}
    for environments, committed, at_most in [([own, own], 2 * GIB, 2 * GIB), ([own, {}], None, 4 * GIB)]:
        present = node_of(environments, on=(0,), gpus=1, defaults=(3,))
        sharing = gpu_sharing(present)[UUIDS[0]]
        total = sharing.memory_total_bytes or 0
        assert sharing.memory_committed == (committed and committed / total)
        assert sharing.memory_at_most == at_most / total


def test_no_limit_on_two_h200_was_other_than_shown(subtests: pytest.Subtests) -> None:
    """Measured by `lab/limits`, driver 580.159.04: number of a GPU, SMs that CUDA reports, and limit in GiB.

    In the phase `defaults`, the daemon has limits of 6 and 4 GiB and of 66 %, in `reversed` only those of memory.
    """
    trials = json.loads(Path(__file__).with_name("limits_of_two_h200.json").read_text(encoding="utf-8"))
    for trial in trials:
        with subtests.test(**{key: str(value) for key, value in trial.items()}):
            phase, measured = trial["phase"], trial["gpus"]
            found = clients_on(
                [gpu for gpu, _, _ in measured],
                trial["own"],
                defaults=() if phase == "none" else (6, 4),
                percentage=66.0 if phase == "defaults" else 100.0,
            )
            for client, (_, sms, limit) in zip(found, measured, strict=True):
                at_most_sms, at_most = round((client.threads or 0) * 132), (client.memory_limit or sys.maxsize) / GIB
                assert at_most_sms == sms or (trial["inside"] and not client.threads_certain and at_most_sms > sms)
                exact = at_most == (limit or sys.maxsize / GIB)
                assert exact or (VISIBLE_DEVICES not in trial["own"] and not client.memory_limit_certain)
                assert at_most >= (limit or sys.maxsize / GIB)


# What the status shows.


def test_the_status_shows_sms_and_upper_bounds() -> None:
    own = {ACTIVE_THREAD_PERCENTAGE: "10", PINNED_MEMORY_LIMIT: "0=1G"}
    present = node_of([own, {}], on=(0,), gpus=1, percentage=50.0, defaults=(3,))
    certain, bound = status_json(present)["gpus"][0]["processes"][:2]
    keys = ("usable_sms", "active_thread_certain", "memory_limit_bytes", "memory_limit_certain")
    assert [certain[key] for key in keys] == [12, True, GIB, True]
    assert [bound[key] for key in keys] == [66, False, 3 * GIB, False]
    sharing = status_json(present)["gpus"][0]["sharing"]
    assert (sharing["sms"], sharing["threads_committed_ratio"], sharing["memory_committed_ratio"]) == (132, None, None)
    assert sharing["reserved"] == ["at most 78 of its 132 SMs", "at most 3 % of its memory"]
    table = status_table(split(present, {CLIENT: flight(0.2), CLIENT + 1: flight(0.1)}, gpu=UUIDS[0]))
    assert "   12 SMs" in table
    assert " ≤ 66 SMs" in table


# What doctor reports.


def warnings(check: Check, gpu: int, environment: Mapping[str, str], **changes: Any) -> list[str]:
    """Return the details of the findings about a client on one of two GPUs."""
    present = node_of([environment], **({"on": (gpu,)} | changes))
    process_facts = ProcessFacts(pid=CLIENT, variables=environment)
    return [each.details for each in check.find(healthy(node=present, daemons=(), processes={CLIENT: process_facts}))]


def test_doctor_warns_of_limits_that_limit_nothing_and_of_no_others(subtests: pytest.Subtests) -> None:
    assert memory_limit_without_effect.definition.severity is Severity.WARNING
    cases: list[tuple[int, dict[str, str], dict[str, Any], bool]] = [
        (1, {VISIBLE_DEVICES: "1", PINNED_MEMORY_LIMIT: "0=2G"}, {}, False),
        (1, {VISIBLE_DEVICES: "1", PINNED_MEMORY_LIMIT: "1=2G"}, {}, True),
        (1, {VISIBLE_DEVICES: "1", PINNED_MEMORY_LIMIT: "1=2G"}, {"defaults": (6, 3)}, True),
        (1, {VISIBLE_DEVICES: "1", PINNED_MEMORY_LIMIT: "0=2G,1=2G"}, {"defaults": (6, 3)}, True),
        (1, {VISIBLE_DEVICES: "1", PINNED_MEMORY_LIMIT: f"{UUIDS[1]}=2G"}, {}, False),
        (1, {VISIBLE_DEVICES: "1", PINNED_MEMORY_LIMIT: f"{UUIDS[0]}=2G"}, {}, True),
        (1, {VISIBLE_DEVICES: UUIDS[1], PINNED_MEMORY_LIMIT: "1=2G"}, {}, True),
        (1, {PINNED_MEMORY_LIMIT: "1=2G"}, {}, False),
        (1, {PINNED_MEMORY_LIMIT: "2=2G"}, {}, True),
        (1, {PINNED_MEMORY_LIMIT: "1=2G"}, {"cgroup": CONTAINER}, False),
        (1, {VISIBLE_DEVICES: "0", PINNED_MEMORY_LIMIT: "1=2G"}, {"cgroup": JOB}, False),
        # It has changed the variable inside the process.
        (1, {VISIBLE_DEVICES: "0", PINNED_MEMORY_LIMIT: "1=2G"}, {}, False),
        (3, {VISIBLE_DEVICES: "3,2", PINNED_MEMORY_LIMIT: "0=2G,1=2G"}, {"gpus": 4, "on": (2, 3)}, False),
        (3, {VISIBLE_DEVICES: "3,2", PINNED_MEMORY_LIMIT: "2=2G"}, {"gpus": 4, "on": (2, 3)}, True),
    ]
    for gpu, environment, changes, warns in cases:
        with subtests.test(gpu=gpu, environment=environment, changes=changes):
            found = warnings(memory_limit_without_effect, gpu, environment, **changes)
            assert bool(found) is warns
            assert all("was started with" in each for each in found)


def test_doctor_does_not_contradict_a_client_that_has_a_context() -> None:
    """It may have set the variable inside the process."""
    assert warnings(visible_devices_wrong, 1, {VISIBLE_DEVICES: "7"}) == []
