"""Names and launches that hostile or unusual clients could make wrong, old, or lost for others."""

import ctypes
import itertools
import subprocess
import sys
import tracemalloc
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import cast

import pytest

from exporter.libcuda_probes.handles import MOST_PLACES, Handles
from exporter.libcuda_probes.probes import (
    HANDLE,
    STREAMS,
    KernelEntry,
    LibcudaProbes,
    Message,
    MessageKind,
)
from exporter.libcuda_probes.recorder import KernelRecorder
from exporter.model.kernels import KernelName, KernelReading
from exporter.model.launches import ProcessWork
from tests.eventually import until
from tests.tools import not_here

from .process_work import work_of
from .standin import StandInCuda
from .test_kernels import PID, STREAM, Client, client, names, nodes

__all__ = ["client"]

K = MessageKind
MODULE, OTHER_MODULE, OLD, NEW, GRAPH, CHILD, EXECUTABLE, FUNCTION = 7, 8, 100, 200, 300, 400, 500, 600
FREE = ctypes.CDLL(None).free
FREE.argtypes = [ctypes.c_void_p]

# A process of a cgroup that gets names as one user after the other: root of a container can be any user. It fails if it
# takes more than two seconds: the ring has room for what is permitted in two, and the service reads it once a second.
FLOOD_AS_MANY = """
import ctypes, os, sys, time
library, handle = ctypes.CDLL(sys.argv[1]), ctypes.c_uint64()
open(sys.argv[2], "w").write(str(os.getpid()))
began = int(time.clock_gettime(time.CLOCK_BOOTTIME))
for uid in range(50_000, 50_004):
    os.setresuid(uid, uid, 0)
    for number in range(2_400):
        library.cuModuleGetFunction(ctypes.byref(handle), None, b"kernel_%d" % number)
    os.setresuid(0, 0, 0)
sys.exit(int(time.clock_gettime(time.CLOCK_BOOTTIME)) > began + 1)
"""


def learned(*messages: tuple[MessageKind, int, int] | tuple[MessageKind, int, int, bytes]) -> Handles:
    """Return what is known of process 1 after messages that came at 1, 2 and so on."""
    handles = Handles(lambda _: 1, lambda _: "user")
    for at, (kind, value, of, *data) in enumerate(messages, 1):
        handles.take([Message(1, kind, at, value, of, *(data or (b"",)))])
    return handles


NAMES = (K.NAMED, OLD, MODULE, b"old\0"), (K.NAMED, NEW, MODULE, b"new\0")
LATER = 99


def test_a_graph_at_the_address_of_a_destroyed_one_has_none_of_its_nodes() -> None:
    handles = learned(*NAMES, (K.ADDED, OLD, GRAPH), (K.GONE, GRAPH, 0), (K.ADDED, NEW, GRAPH))

    assert handles.names(1, GRAPH, LATER) == ("new",)


def test_a_graph_keeps_the_nodes_of_a_child_whose_address_another_graph_has() -> None:
    """The parent has a copy of its child, which programs destroy then."""
    handles = learned(
        *NAMES,
        (K.CAPTURED, CHILD, 1, HANDLE.pack(OLD)),
        (K.ADDED, CHILD, GRAPH),
        (K.SAME, EXECUTABLE, GRAPH),
        (K.GONE, CHILD, 0),
        (K.CAPTURED, CHILD, 1, HANDLE.pack(NEW)),
    )

    assert "new" not in handles.names(1, EXECUTABLE, LATER)


def test_a_function_of_an_unloaded_kernel_has_not_the_name_of_a_later_one() -> None:
    """While cuKernelGetFunction is not probed, nothing tells what the function is now."""
    handles = learned(
        (K.NAMED, OLD, MODULE, b"old\0"),
        (K.SAME, FUNCTION, OLD),
        (K.GONE, MODULE, 0),
        (K.NAMED, OLD, OTHER_MODULE, b"new\0"),
    )

    assert handles.names(1, FUNCTION, LATER) == (None,)


def test_processes_without_names_take_no_memory() -> None:
    """No call of theirs creates counts, so that nobody would ever forget them."""
    handles = Handles(lambda _: 1, lambda _: "user")
    tracemalloc.start()
    handles.take(Message(pid, K.GONE, 1, 9, 0, b"") for pid in range(1, 20_001))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert taken < 2_000_000


def test_many_processes_with_one_name_each_are_dropped_without_a_count_for_each() -> None:
    """Their places were added up for each handle to drop: 5,000 in a second took 20 s."""
    asked = itertools.count()
    handles = Handles(lambda _: 1, lambda _: Tenant(asked))
    handles.take(Message(pid, K.NAMED, 1, 1, 7, b"kernel\0") for pid in range(1, MOST_PLACES + 1))
    handles.take(Message(pid, K.NAMED, 1, 1, 7, b"kernel\0") for pid in range(MOST_PLACES + 1, MOST_PLACES + 21))

    assert next(asked) < 5 * MOST_PLACES


class Tenant:
    """A tenant that counts how often it is counted."""

    def __init__(self, asked: "itertools.count[int]") -> None:
        self._asked = asked

    def __hash__(self) -> int:
        next(self._asked)
        return 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tenant)


def test_an_executable_at_the_address_of_a_destroyed_one_has_its_kernels(client: Client) -> None:
    """An allocator gives later executables of a graph the same addresses."""
    client.call("cuStreamBeginCapture", STREAM)
    client.launch(client.made("cuModuleGetFunction", MODULE, b"first_1000"))
    graph = client.captured()
    # This process allocates in between too, so that one address may be used for something else.
    destroyed = {client.made("cuGraphInstantiate", graph) for _ in range(20)}
    for each in destroyed:
        client.call("cuGraphExecDestroy", each)
        FREE(each)
    again = {client.made("cuGraphInstantiate", graph) for _ in range(40)} & destroyed
    client.call("cuGraphLaunch", again.pop(), STREAM)

    assert nodes(client.read()) == [["first_1000"]]


def test_a_launched_graph_has_not_the_kernels_of_a_later_one_at_its_address() -> None:
    """It may still run when the program destroys it."""
    handles = learned(*NAMES, (K.CAPTURED, GRAPH, 1, HANDLE.pack(OLD)), (K.GONE, GRAPH, 0))
    launched_at = 3
    handles.take([Message(1, K.CAPTURED, 5, GRAPH, 1, HANDLE.pack(NEW))])

    assert "new" not in handles.names(1, GRAPH, launched_at)


def test_after_lost_names_a_function_has_the_name_of_its_kernel_again(client: Client) -> None:
    def launched() -> dict[str | None, int]:
        client.launch(client.made("cuKernelGetFunction", client.made("cuLibraryGetKernel", MODULE, b"first_1000")))
        return names(client.read())

    assert launched() == {"first_1000": 1}
    client.recorder.forget([PID])

    assert launched() == {"first_1000": 2}


def test_a_kernel_is_not_ended_by_the_wait_for_the_one_whose_place_it_took(client: Client) -> None:
    other = client.made("cuStreamCreate", 0)
    client.call("cuLaunchKernel", 999, 1, 1, 1, 1, 1, 1, 0, other, 0, 0)
    for handle in range(1_000, 1_200):
        client.launch(handle)
    latest = client.read().last[0]
    client.call("cuStreamSynchronize", other)
    after = client.read().last

    assert latest.last_ns == after[0].last_ns
    assert [each.until_ns for each in after if each.stream == 1] == [0] * sum(each.stream == 1 for each in after)


def test_a_process_has_its_kernels_although_others_took_all_places(client: Client) -> None:
    """One tenant's processes can take all places, and no clean-up gives any back while they live."""
    entries = client.probes._kernels
    taken = [HANDLE.pack((1 << 40) + number) for number in range(896)]
    size = len(next(iter(entries.items()), (b"", bytes(64 * 88)))[1])
    for key in taken:
        entries.put(key, bytes(size))
    try:
        client.launch(client.made("cuModuleGetFunction", MODULE, b"first_1000"))
        assert client.read().names_lost > 0
    finally:
        for key in taken:
            entries.delete(key)


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """Create a cgroup, as a container has one."""
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    root = next((Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"), None)
    if root is None:
        not_here("cgroup v2 is not mounted")
    created = root / f"names-{PID}"
    created.mkdir()
    yield created
    created.rmdir()


def test_a_flood_as_several_users_loses_no_names_of_a_neighbour(
    client: Client, cuda: StandInCuda, cgroup: Path
) -> None:
    client.launch(1_000)
    flood = (sys.executable, "-c", FLOOD_AS_MANY, str(cuda.library), str(cgroup / "cgroup.procs"))

    def floods() -> bool:
        client.read()
        return subprocess.run(flood, check=False).returncode == 0

    until(floods)
    client.launch(client.made("cuModuleGetFunction", MODULE, b"first_1000"))
    read = client.read()

    assert (names(read), read.names_lost) == ({"first_1000": 1}, 0)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("cuGraphExecKernelNodeSetParams", [2000]),
        ("cuGraphExecKernelNodeSetParams_v2", [0] * 7 + [2000]),
    ],
)
def test_a_graph_with_a_replaced_kernel_has_none_of_the_old_ones(
    function: str, words: list[int], client: Client
) -> None:
    client.call("cuStreamBeginCapture", STREAM)
    client.launch(client.made("cuModuleGetFunction", MODULE, b"old_1000"))
    executable = client.made("cuGraphInstantiate", client.captured())
    client.call("cuGraphLaunch", executable, STREAM)
    assert nodes(client.read()) == [["old_1000"]]

    client.made("cuModuleGetFunction", MODULE, b"new_2000")
    description = (ctypes.c_uint64 * 16)(*words)
    client.call(function, executable, 0, ctypes.addressof(description))
    client.call("cuGraphLaunch", executable, STREAM)

    assert nodes(client.read()) == [["new_2000"]]


@pytest.mark.parametrize("function", ["cuGraphKernelNodeSetParams", "cuGraphKernelNodeSetParams_v2"])
def test_after_a_node_of_an_unknown_graph_has_another_kernel_no_graph_has_known_ones(
    function: str, client: Client
) -> None:
    client.call("cuStreamBeginCapture", STREAM)
    client.launch(client.made("cuModuleGetFunction", MODULE, b"old_1000"))
    graph = client.captured()
    client.call(function, 0, 0)
    client.call("cuGraphLaunch", client.made("cuGraphInstantiate", graph), STREAM)

    assert nodes(client.read()) == [[]]


@pytest.mark.parametrize("function", ["cuGraphExecUpdate", "cuGraphExecUpdate_v2"])
def test_an_updated_graph_has_the_kernels_of_the_other_one(function: str, client: Client) -> None:
    graphs = []
    for name in (b"old_1000", b"new_2000"):
        client.call("cuStreamBeginCapture", STREAM)
        client.launch(client.made("cuModuleGetFunction", MODULE, name))
        graphs.append(client.captured())
    executable = client.made("cuGraphInstantiate", graphs[0])
    client.call(function, executable, graphs[1], 0)
    client.call("cuGraphLaunch", executable, STREAM)

    assert nodes(client.read()) == [["new_2000"]]


CAPTURES = """
import ctypes, sys, threading
library = ctypes.CDLL(sys.argv[1])
threads = [threading.Thread(target=library.cuStreamBeginCapture, args=(None,)) for _ in range(600)]
for each in threads:
    each.start()
for each in threads:
    each.join()
"""


def test_captures_of_another_process_take_no_place_of_a_capture(client: Client, cuda: StandInCuda) -> None:
    client.call("cuStreamBeginCapture", STREAM)
    client.launch(client.made("cuModuleGetFunction", MODULE, b"first_1000"))
    with subprocess.Popen((sys.executable, "-c", CAPTURES, str(cuda.library))) as process:
        assert process.wait() == 0
    client.launch(client.made("cuModuleGetFunction", MODULE, b"second_2000"))
    client.call("cuGraphLaunch", client.made("cuGraphInstantiate", client.captured()), STREAM)

    assert nodes(client.read()) == [["first_1000", "second_2000"]]


def test_a_graph_has_no_kernels_of_another_capture_of_its_thread(client: Client) -> None:
    outer, inner = (client.made("cuModuleGetFunction", MODULE, name) for name in (b"outer_1000", b"inner_2000"))
    other = client.made("cuStreamCreate", 0)
    client.call("cuStreamBeginCapture", STREAM)
    client.call("cuStreamBeginCapture", other)
    client.call("cuLaunchKernel", inner, 1, 1, 1, 1, 1, 1, 0, other, 0, 0)
    client.launch(outer)
    graph = ctypes.c_uint64()
    client.call("cuStreamEndCapture", other, ctypes.byref(graph))
    client.captured()
    client.call("cuGraphLaunch", client.made("cuGraphInstantiate", graph.value), STREAM)

    assert "outer_1000" not in nodes(client.read())[0]


def test_work_on_more_streams_than_places_is_known_to_be_incomplete(client: Client) -> None:
    """Otherwise such a client would be found idle, and its neighbour be the only one with work in flight."""
    streams = [client.made("cuStreamCreate", 0) for _ in range(STREAMS)]
    for handle, stream in enumerate(streams, 1_000):
        client.call("cuLaunchKernel", handle, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0)
    assert work_of(client.probes, PID).hidden_ns == 0
    client.launch(2_000)
    client.call("cuStreamSynchronize", streams[-1])

    assert work_of(client.probes, PID).hidden_ns > 0


def test_launches_beside_a_capture_are_known_to_be_incomplete(client: Client) -> None:
    """Only the streams of a capture are captured: a client could hide its work, and seem idle."""
    other, graph = client.made("cuStreamCreate", 0), ctypes.c_uint64()
    client.call("cuStreamBeginCapture", other)
    client.launch(client.made("cuModuleGetFunction", MODULE, b"runs_1000"))
    client.call("cuStreamEndCapture", other, ctypes.byref(graph))

    assert work_of(client.probes, PID).hidden_ns > 0


class Read:
    """Probes that have read these kernels of a process."""

    sms = 132

    def __init__(self, entries: list[KernelEntry]) -> None:
        self._entries = entries

    def kernels(self) -> list[tuple[int, list[KernelEntry]]]:
        return [(1, self._entries)]

    def messages(self) -> list[Message]:
        return []


def test_only_names_that_are_shown_are_made_readable() -> None:
    """With 400 clients of 40 kernels, a reading took 1.3 s, and one client could keep all others' names mangled."""
    asked: list[str] = []

    def readable(raws: Collection[str]) -> dict[str, KernelName]:
        asked.extend(raws)
        return {raw: KernelName(raw=raw, short=raw) for raw in raws}

    kernels = range(1, 65)
    captured = b"".join(map(HANDLE.pack, kernels[:48]))
    handles = learned(
        *((K.NAMED, each, MODULE, b"kernel_%d\0" % each) for each in kernels), (K.CAPTURED, GRAPH, 48, captured)
    )
    entries = [KernelEntry(each, 1, 2, LATER, each, 5, 4, 1, (1, 1, 1), (1, 1, 1)) for each in kernels]
    entries[0] = entries[0]._replace(handle=GRAPH, grid=(0, 0, 0), flight_ns=10_000)
    works = {1: ProcessWork(pid=1, first_ns=1)}
    reading = KernelRecorder(handles, readable).read(
        cast("LibcudaProbes", Read(entries)), works, {1}, KernelReading(at=1.0, boot_ns=200)
    )

    assert len(asked) <= 4 * len(reading.clients[0].most)
    assert max(len(use.nodes) for use in reading.clients[0].most) <= 4
