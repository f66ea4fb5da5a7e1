"""MIG instances as devices: which daemon serves them, their clients, memory, Xids, and statements about all layouts."""

from collections import Counter
from dataclasses import replace

import pytest

from exporter.history import sample_of
from exporter.metrics.catalogue import NodeCollector
from exporter.model.daemon import Daemon, Declaration
from exporter.model.node import Node, SharingMode
from exporter.model.observation import (
    DaemonProcess,
    GpuEvent,
    GpuProcess,
    GpuReading,
    KernelRecord,
    MigInstance,
    Observation,
)
from exporter.model.settings import Limits
from exporter.page.page import Page
from exporter.parse.protocol3 import LIST_PARTITIONS
from exporter.reducer import reduce
from exporter.state.devices import device_count, failure_domains, gpus_by_ordinal, serves_gpu
from exporter.state.gpus import sharing_mode
from exporter.usage.capacity import Bound, gpu_sharing, thread_ratio
from exporter.view import View
from exporter.watchdog.limit_enforcement import check_limits
from tests.builders import (
    AT,
    DAEMON,
    GPU,
    MIB,
    MIG_UUIDS,
    SERVER,
    at_work,
    daemon_process,
    gpu_reading,
    mig,
    no_daemon,
    process,
    reduced,
    reply,
    with_fields,
)
from tests.page.inputs import status_input
from tests.parse.test_protocol3 import SAMPLES
from tests.status import status_table

FIRST, SECOND = MIG_UUIDS
ADDRESS = "00000000:0A:00.0"

LAYOUTS = {
    "one 7g": [(0, 0)],
    "3g and 4g": [(1, 0), (2, 0)],
    "seven 1g": [(number, 0) for number in range(7, 14)],
    "compute instances": [(3, 0), (3, 1), (4, 0)],
}


def uuid(number: int, compute: int) -> str:
    return f"MIG-055a5b27-613d-8c97-6fb4-{number:06d}{compute:06d}"


def readings(layout: str, at: float = AT, clients: int = 2) -> list[GpuReading]:
    """Each instance has clients of its own; the first compute instance has the memory of a GPU instance."""
    numbers, seen = LAYOUTS[layout], Counter[int]()
    parent = GpuReading(
        at=at,
        gpu=GPU,
        index=0,
        mig_mode=True,
        pci_bus_id=ADDRESS,
        power_milliwatts=100_000,
        memory_total_bytes=140 << 30,
        memory_used_bytes=10 << 30,
        instances=tuple(uuid(*each) for each in numbers),
    )
    found = [parent]
    for place, (number, compute) in enumerate(numbers):
        pids = [1000 * (place + 1) + each for each in range(clients)]
        lists = tuple(GpuProcess(pid=pid, used_bytes=1 << 30) for pid in pids)
        seen[number] += 1
        found.append(
            GpuReading(
                at=at,
                gpu=uuid(number, compute),
                mig_mode=False,
                mig=MigInstance(parent=GPU, gpu_instance=number, compute_instance=compute, profile="1g.18gb", sms=16),
                compute_processes=lists,
                mps_processes=lists,
                memory_total_bytes=18 << 30 if seen[number] == 1 else None,
                memory_used_bytes=2 << 30 if seen[number] == 1 else None,
                compute_capability="9.0",
                cuda_version="13.0",
            )
        )
    return found


def node_of(layout: str, *more: Observation) -> Node:
    """A daemon for each instance, with a server and two clients."""
    daemons = {
        f"/mps/{place}": Daemon(
            name=f"/mps/{place}", pipe_directory=f"/mps/{place}", log_directory="", declared=Declaration(expected=True)
        )
        for place in range(len(LAYOUTS[layout]))
    }
    present = Node(daemons=daemons)
    for place, each in enumerate(LAYOUTS[layout]):
        name, server = f"/mps/{place}", 500 + place
        for seen in (
            DaemonProcess(
                at=AT, daemon=name, pid=100 + place, start_ticks=1, environment={"CUDA_VISIBLE_DEVICES": uuid(*each)}
            ),
            reply("get_server_list", f"{server}\n", daemon=name),
            reply(f"get_client_list {server}", "".join(f"{1000 * (place + 1) + n}\n" for n in range(2)), daemon=name),
        ):
            present, _ = reduce(present, seen)
        limits = reply(f"get_active_thread_percentage {server}", "100.0\n", daemon=name)
        for seen in (limits, *(process(1000 * (place + 1) + number) for number in range(2))):
            present, _ = reduce(present, seen)
    for seen in (*readings(layout), *more):
        present, _ = reduce(present, seen)
    return present


def samples(node: Node, name: str) -> dict[tuple[str, ...], float]:
    found = (metric for metric in NodeCollector(View(node)).collect())
    return {tuple(each.labels.values()): each.value for metric in found for each in metric.samples if each.name == name}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_statements_hold_for_each_layout(layout: str) -> None:
    node = node_of(layout)
    instances = [uuid(*each) for each in LAYOUTS[layout]]
    shared = gpu_sharing(node)
    assert sharing_mode(node, node.gpus[GPU]) is SharingMode.MIG
    assert set(shared) == set(instances)
    for place, each in enumerate(instances):
        daemon = node.daemons[f"/mps/{place}"]
        # A fault ends the clients of one instance, and of no other.
        [domain] = failure_domains(node, daemon)[500 + place]
        assert (domain.gpus, len(domain.clients)) == ({each}, 2)
        assert sharing_mode(node, node.gpus[each]) is SharingMode.MPS
        assert [other.name for other in node.daemons.values() if serves_gpu(node, other, node.gpus[each].reading)] == [
            daemon.name
        ]
        assert gpus_by_ordinal(node, daemon) == {0: each}
        fits = shared[each].headroom.clients
        assert fits is None if node.gpus[each].reading.memory_total_bytes is None else fits is not None
    # The memory of a GPU instance is there once, and that of the whole GPU is not added to it.
    in_sum = sum(samples(node, "cuda_mps_gpu_memory_total_bytes").values())
    assert in_sum == (18 << 30) * len({number for number, _ in LAYOUTS[layout]})
    assert sample_of(node).memory_ratio == pytest.approx(2 / 18, abs=1e-4)
    assert list(samples(node, "cuda_mps_gpu_power_watts")) == [(GPU,)]
    assert len(samples(node, "cuda_mps_gpu_mig_info")) == len(instances)
    assert sum(samples(node, "cuda_mps_client_memory_used_bytes").values()) == (2 << 30) * len(instances)
    assert sum(samples(node, "cuda_mps_bypassing_processes").values()) == 0


def test_a_daemon_serves_the_instance_that_it_names(subtests: pytest.Subtests) -> None:
    """With the GPU's own name, CUDA uses one instance, and it is unknown which."""
    for visible, served in [
        (FIRST, {FIRST}),
        (FIRST[:20], {FIRST}),
        (f"MIG-{GPU}/1/0", {FIRST}),
        (f"MIG-{GPU}/9/0", set()),
        ("-1", set()),
        ("0", {GPU}),
        (GPU, {GPU}),
        (None, {GPU}),
    ]:
        with subtests.test(visible=visible, served=served):
            node = mig()
            daemon = next(iter(node.daemons.values()))
            present = reduced(
                DaemonProcess(
                    at=AT,
                    daemon=daemon.name,
                    pid=442,
                    start_ticks=7,
                    environment={} if visible is None else {"CUDA_VISIBLE_DEVICES": visible},
                ),
                start=node,
            ).node
            daemon = present.daemons[daemon.name]
            serves = {uuid: serves_gpu(present, daemon, gpu.reading) for uuid, gpu in present.gpus.items()}
            assert {uuid for uuid, gpu in serves.items() if gpu} == served
            assert {uuid for uuid, gpu in serves.items() if gpu is None} == (
                {FIRST, SECOND} if GPU in served else set()
            )
            assert device_count(present, daemon) == len(served)


def test_the_daemons_own_list_names_instances() -> None:
    present = reduced(reply("device_query --csv", f"0,0A:00.0,{SECOND},NVIDIA H200 MIG 4g.71gb\n"), start=mig()).node
    daemon = next(iter(present.daemons.values()))
    assert gpus_by_ordinal(present, daemon) == {0: SECOND}


def test_the_first_of_several_instances_is_unknown() -> None:
    """CUDA enumerates one of them (MIG user guide)."""
    for visible, expected in ((FIRST, {0: FIRST}), (f"{FIRST},{SECOND}", {})):
        daemon = with_fields(next(iter(mig().daemons.values())), runtime__devices={}, runtime__visible_devices=visible)
        assert gpus_by_ordinal(mig(), daemon) == expected


def test_a_removed_instance_is_forgotten() -> None:
    node = node_of("seven 1g", *readings("3g and 4g", at=AT + 10))
    assert set(node.gpus) == {GPU, uuid(1, 0), uuid(2, 0)}
    whole = GpuReading(at=AT + 20, gpu=GPU, index=0, mig_mode=False, compute_processes=(), mps_processes=())
    assert set(reduced(whole, start=node).node.gpus) == {GPU}


def test_an_xid_belongs_to_the_instance_that_the_kernel_names(subtests: pytest.Subtests) -> None:
    """If the instance is unknown, or several compute instances share it, the Xid is one of the GPU."""
    for place, found in [
        ("", GPU),
        (" GPU-I:03", GPU),
        (" GPU-I:03 GPU-CI:01", uuid(3, 1)),
        (" GPU-I:04", uuid(4, 0)),
        (" GPU-I:05", GPU),
    ]:
        with subtests.test(place=place, found=found):
            text = f"NVRM: Xid (PCI:0000:0a:00{place}): 31, pid=1000, name=python, Ch 00000010"
            node = node_of("compute instances", KernelRecord(at=AT + 1, record=f"4,1,1,-;{text}"))
            assert list(node.xids.counts) == [(found, "31")]


def test_an_xid_of_nvml_belongs_to_its_instance() -> None:
    node = node_of("3g and 4g", GpuEvent(at=AT + 1, type=8, xid=31, gpu=GPU, gpu_instance=2, compute_instance=0))
    assert list(node.xids.counts) == [(uuid(2, 0), "31")]


def test_shows_instances_with_their_numbers() -> None:
    node = node_of("3g and 4g")
    assert "GPU 0/1/0" in Page({}).node(status_input(node)).decode()
    assert "0/2/0" in status_table(node)
    assert (uuid(1, 0), "0/1/0") in {key[:2] for key in samples(node, "cuda_mps_gpu_info")}


# Static SM partitions of both protocols: what does not apply to them is not claimed.


FIRST_PARTITIONS, SECOND_PARTITIONS = 600, 601
CREATED = reply(LIST_PARTITIONS, SAMPLES[LIST_PARTITIONS], at=AT + 4)
"""A list of a daemon with protocol 3: one partition is created."""


def node_with_partitions(*seen: Observation, options: tuple[str, ...] = ()) -> Node:
    """A server with two clients and a limit of threads, and then these observations."""
    return reduced(
        replace(daemon_process(), options=options),
        *at_work(FIRST_PARTITIONS, SECOND_PARTITIONS),
        reply(f"get_active_thread_percentage {SERVER}", "50.0\n"),
        replace(
            gpu_reading({FIRST_PARTITIONS: 1024, SECOND_PARTITIONS: 1024}),
            memory_total_bytes=80 << 30,
            memory_used_bytes=2048 * MIB,
        ),
        process(FIRST_PARTITIONS),
        *seen,
    ).node


def families(node: Node) -> set[str]:
    return {sample.name for metric in NodeCollector(View(node)).collect() for sample in metric.samples}


def test_what_static_partitions_change(subtests: pytest.Subtests) -> None:
    for node, partitioned in [
        (node_with_partitions(), False),
        (node_with_partitions(options=("-S",)), True),
        (node_with_partitions(CREATED), True),
        (node_with_partitions(replace(CREATED, stdout=CREATED.stdout.replace("created", "configured"))), False),
        (node_with_partitions(CREATED, replace(CREATED, stdout=CREATED.stdout.splitlines()[0])), False),
    ]:
        with subtests.test(node=node, partitioned=partitioned):
            daemon = node.daemons[DAEMON]
            assert daemon.has_static_partitions is partitioned
            assert thread_ratio(node, daemon, daemon.clients[FIRST_PARTITIONS]) == (None if partitioned else 0.5)
            assert ("cuda_mps_server_active_thread_ratio" in families(node)) is not partitioned
            assert bool(check_limits(daemon, Limits(active_thread_percentage=10.0), 9.0)) is not partitioned
            [domain] = failure_domains(node, daemon)[SERVER]
            assert (domain.clients, domain.upper_bound) == ({FIRST_PARTITIONS, SECOND_PARTITIONS}, partitioned)
            bounds = gpu_sharing(node)[GPU].headroom.by_resource.keys()
            assert not partitioned or not bounds & {Bound.SM, Bound.SLOTS}, bounds
            page = Page({}).node(status_input(node)).decode()
            assert ("static SM partitions" in page) is partitioned
            assert ("of threads" in page) is not partitioned


def test_a_new_daemon_has_no_partitions_yet() -> None:
    node = node_with_partitions(CREATED, no_daemon(at=AT + 5), daemon_process(None, at=AT + 6))

    new = reduced(daemon_process(900, at=AT + 7), start=node).node

    assert not new.daemons[DAEMON].has_static_partitions
