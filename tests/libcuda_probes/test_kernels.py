"""Names of kernels, the kernels of graphs, and what each process launched last."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from exporter.libcuda_probes.handles import MOST_PLACES, Handles
from exporter.libcuda_probes.probes import CAPTURED_KERNELS, PROBE_POINTS, LibcudaProbes, Message, MessageKind
from exporter.model.kernels import ClientKernels, KernelReading
from exporter.model.launches import sums
from tests.eventually import until

from .conftest import recorder
from .process_work import boot_ns
from .standin import StandInCuda, Work

PID = os.getpid()
STREAM = 0
SECOND_NS = 1_000_000_000
INSTANTIATE = [point.name for point in PROBE_POINTS if point.kind == "same_graph"]

FLOOD = """
import ctypes, os, sys
library, handle = ctypes.CDLL(sys.argv[1]), ctypes.c_uint64()
os.setuid(int(sys.argv[2]))
for number in range(int(sys.argv[3])):
    library.cuModuleGetFunction(ctypes.byref(handle), None, b"kernel_%d" % number)
"""
NOBODY = 65534


class Client:
    """A client in this process, as it calls the stand-in, and what a recorder knows of it."""

    def __init__(self, cuda: StandInCuda, probes: LibcudaProbes) -> None:
        self._library = ctypes.CDLL(str(cuda.library))
        self.probes = probes
        self.recorder = recorder()
        self.recorder.update(probes, {})

    def call(self, function: str, *arguments: Any) -> None:
        words = (ctypes.c_uint64(each) if isinstance(each, int) else each for each in arguments)
        assert getattr(self._library, function)(*words) == 0

    def made(self, function: str, *arguments: Any) -> int:
        """Return the handle that a function writes to its first argument."""
        handle = ctypes.c_uint64()
        self.call(function, ctypes.byref(handle), *arguments)
        return handle.value

    def captured(self) -> int:
        """End a capture, and return the graph."""
        graph = ctypes.c_uint64()
        self.call("cuStreamEndCapture", STREAM, ctypes.byref(graph))
        return graph.value

    def launch(self, handle: int, blocks: int = 2) -> None:
        self.call("cuLaunchKernel", handle, blocks, 3, 1, 32, 4, 5, 0, STREAM, 0, 0)

    def read(self, *, seconds: float = 1.0, after: float = 0.0, at_fault: bool = True) -> ClientKernels:
        """Read so many seconds `after` now; the probes were attached for `seconds`."""
        works = sums(self.probes.read())
        self.recorder.update(self.probes, works, seconds)
        reading = KernelReading(at=1.0, boot_ns=boot_ns() + int(after * SECOND_NS), at_fault=at_fault)
        (client,) = self.recorder.read(self.probes, works, {PID}, reading).clients
        return client


@pytest.fixture
def client(cuda: StandInCuda, detached: LibcudaProbes) -> Client:
    detached.attach(str(cuda.library), cuda.offsets())
    detached.begin()
    return Client(cuda, detached)


def names(client: ClientKernels) -> dict[str | None, int]:
    """Return the launches of each kernel by its name."""
    return {None if each.name is None else each.name.raw: each.launches for each in client.last}


def nodes(client: ClientKernels) -> list[list[str]]:
    return [[name.raw for name in each.nodes] for each in client.last if each.is_graph]


@pytest.mark.parametrize("function", ["cuModuleGetFunction", "cuLibraryGetKernel"])
def test_a_launch_has_the_name_that_the_program_asked_for(function: str, client: Client) -> None:
    kernel = client.made(function, 7, b"scale_1000")

    client.launch(kernel)
    (launched,) = client.read().last

    assert launched.name is not None
    assert launched.name.raw == "scale_1000"
    assert (launched.launches, launched.completed, launched.until_ns, launched.is_graph) == (1, 0, 0, False)
    assert (launched.grid, launched.block, launched.stream) == ((2, 3, 1), (32, 4, 5), 1)


def test_a_function_has_the_name_of_its_kernel(client: Client) -> None:
    kernel = client.made("cuLibraryGetKernel", 7, b"scale_1000")
    function = client.made("cuKernelGetFunction", kernel)

    client.launch(function)
    client.launch(client.made("cuKernelGetFunction", kernel))

    assert function != kernel
    assert names(client.read()) == {"scale_1000": 2}


def test_a_kernel_that_the_program_got_before_has_no_name(client: Client) -> None:
    client.launch(1000)

    assert names(client.read()) == {None: 1}


@pytest.mark.parametrize("length", [255, 256, 257, 2_000, 4_095, 5_000])
def test_long_names_are_whole_up_to_a_bound(length: int, client: Client) -> None:
    name = b"x" * (length - 5) + b"_1000"

    client.launch(client.made("cuModuleGetFunction", 7, name))

    assert names(client.read()) == {name.decode()[:4_095]: 1}


def test_a_name_of_any_bytes_is_text(client: Client) -> None:
    client.launch(client.made("cuModuleGetFunction", 7, b"\xff\n\xc3\xa9_1000"))

    assert names(client.read()) == {"\ufffd\n\u00e9_1000": 1}


def test_a_failed_lookup_names_nothing(client: Client) -> None:
    client.launch(client.made("cuModuleGetFunction", 7, b"first_1000"))
    with pytest.raises(AssertionError):
        client.made("cuModuleGetFunction", 7, b"invalid")

    assert names(client.read()) == {"first_1000": 1}


def test_a_handle_that_is_used_again_has_the_new_name_and_new_counts(client: Client) -> None:
    for name in (b"old_1000", b"new_1000"):
        client.launch(client.made("cuModuleGetFunction", 7, name))
        client.call("cuCtxSynchronize")
    (launched,) = client.read().last

    assert launched.name is not None
    assert (launched.name.raw, launched.launches, launched.completed) == ("new_1000", 1, 0)


@pytest.mark.parametrize(
    ("unload", "get"), [("cuModuleUnload", "cuModuleGetFunction"), ("cuLibraryUnload", "cuLibraryGetKernel")]
)
def test_after_an_unload_a_handle_has_its_name_in_earlier_launches_only(unload: str, get: str, client: Client) -> None:
    client.launch(client.made(get, 7, b"first_1000"))
    client.launch(client.made(get, 8, b"other_2000"))
    client.call(unload, 7)
    before = client.read()
    client.launch(1000)
    client.launch(2000)

    assert names(before) == {"first_1000": 1, "other_2000": 1}
    assert names(client.read()) == {None: 2, "other_2000": 2}


def test_a_module_at_the_address_of_an_unloaded_one_has_only_its_own_names(client: Client) -> None:
    for name in (b"first_1000", b"second_2000"):
        client.made("cuModuleGetFunction", 7, name)
    client.call("cuModuleUnload", 7)
    client.made("cuModuleGetFunction", 7, b"third_2000")
    client.launch(1000)
    client.launch(2000)

    assert names(client.read()) == {None: 1, "third_2000": 1}


def test_another_program_of_the_process_has_none_of_the_names(
    client: Client, cuda: StandInCuda, tmp_path: Path
) -> None:
    """execve(2) maps libcuda at another address, as is a copy of the library."""
    client.call("cuInit", 0)
    client.launch(client.made("cuModuleGetFunction", 7, b"first_1000"))
    client.call("cuInit", 0)
    assert names(client.read()) == {"first_1000": 1}

    mapped = shutil.copy(cuda.library, tmp_path)
    client.probes.attach(mapped, cuda.offsets())
    ctypes.CDLL(mapped).cuInit(0)
    client.launch(1000)

    assert names(client.read()) == {None: 2}


@pytest.mark.parametrize("instantiate", INSTANTIATE)
def test_a_captured_graph_has_the_kernels_of_the_capture(instantiate: str, client: Client) -> None:
    kernels = [client.made("cuModuleGetFunction", 7, name) for name in (b"first_1000", b"second_2000")]
    client.call("cuStreamBeginCapture", STREAM)
    for kernel in (*kernels, kernels[0]):
        client.launch(kernel)
    executable = client.made(instantiate, client.captured())

    client.call("cuGraphLaunch", executable, STREAM)
    read = client.read()

    assert nodes(read) == [["first_1000", "second_2000"]]
    assert len(read.last) == 1, "a captured kernel does not run"


def test_a_graph_of_many_kernels_has_the_first_ones(client: Client) -> None:
    client.call("cuStreamBeginCapture", STREAM)
    for number in range(1_000, 1_000 + CAPTURED_KERNELS + 5):
        client.launch(client.made("cuModuleGetFunction", 7, b"kernel_%d" % number))
    client.call("cuGraphLaunch", client.made("cuGraphInstantiate", client.captured()), STREAM)

    (found,) = nodes(client.read())

    assert found == [f"kernel_{number}" for number in range(1_000, 1_003)]


@pytest.mark.parametrize(
    ("function", "words", "at"),
    [
        ("cuGraphAddKernelNode", [1000], 4),
        ("cuGraphAddKernelNode_v2", [1000], 4),
        ("cuGraphAddKernelNode_v2", [0] * 7 + [1000], 4),
        ("cuGraphAddNode", [0, 0, 1000], 4),
        ("cuGraphAddNode_v2", [0, 0, 1000], 5),
        ("cuGraphAddNode_v2", [0] * 9 + [1000], 5),
    ],
)
def test_a_graph_has_the_kernels_that_were_added(function: str, words: list[int], at: int, client: Client) -> None:
    client.made("cuLibraryGetKernel", 7, b"first_1000")
    graph, parent = client.made("cuGraphCreate", 0), client.made("cuGraphCreate", 0)
    description = (ctypes.c_uint64 * 16)(*words)
    client.call(function, *[0, graph, 0, 0, 0, 0][:at], ctypes.addressof(description))
    client.call("cuGraphAddChildGraphNode", 0, parent, 0, 0, graph)

    for each in (graph, parent):
        client.call("cuGraphLaunch", client.made("cuGraphInstantiate", each), STREAM)

    assert nodes(client.read()) == [["first_1000"]] * 2


def test_a_conditional_node_has_the_kernels_of_its_bodies(client: Client) -> None:
    parent = client.made("cuGraphCreate", 0)
    description = (ctypes.c_uint64 * 16)(13, 0, 0, 2 << 32)  # CU_GRAPH_NODE_TYPE_CONDITIONAL with two bodies
    client.call("cuGraphAddNode_v2", 0, parent, 0, 0, 0, ctypes.addressof(description))
    executable = client.made("cuGraphInstantiate", parent)
    for body, name in zip((ctypes.c_uint64 * 2).from_address(description[4]), (b"if_1000", b"else_2000"), strict=True):
        client.call("cuStreamBeginCaptureToGraph", STREAM, body, 0, 0, 0, 0)
        client.launch(client.made("cuModuleGetFunction", 7, name))
        assert client.captured() == body
    client.call("cuGraphLaunch", executable, STREAM)

    assert nodes(client.read()) == [["if_1000", "else_2000"]]


def test_a_node_that_is_no_kernel_adds_none(client: Client) -> None:
    graph = client.made("cuGraphCreate", 0)
    description = (ctypes.c_uint64 * 16)(1, 0, 1000)  # CU_GRAPH_NODE_TYPE_MEMCPY
    client.call("cuGraphAddNode", 0, graph, 0, 0, ctypes.addressof(description))
    client.call("cuGraphLaunch", client.made("cuGraphInstantiate", graph), STREAM)

    assert nodes(client.read()) == [[]]


def test_a_destroyed_graph_gives_its_kernels_to_no_later_one(client: Client) -> None:
    client.call("cuStreamBeginCapture", STREAM)
    client.launch(client.made("cuModuleGetFunction", 7, b"first_1000"))
    graph = client.captured()
    client.call("cuGraphLaunch", graph, STREAM)
    client.call("cuGraphExecDestroy", graph)
    before = client.read()
    client.call("cuGraphLaunch", graph, STREAM)

    assert nodes(before) == [["first_1000"]]
    assert nodes(client.read()) == [[]]


def test_a_kernel_is_in_flight_from_its_first_launch_until_a_wait_returns(client: Client) -> None:
    first, second = (client.made("cuModuleGetFunction", 7, name) for name in (b"first_1000", b"second_2000"))
    for kernel in (first, first, second):
        client.launch(kernel)
    between = boot_ns()
    client.call("cuCtxSynchronize")
    client.launch(second)
    now = boot_ns()
    later, earlier = client.read().last

    assert later.name is not None
    assert (later.name.raw, later.launches, later.completed, later.until_ns) == ("second_2000", 2, 1, 0)
    assert (earlier.launches, earlier.completed) == (2, 0)
    assert earlier.in_flight_at(between)
    assert not earlier.in_flight_at(now)
    assert later.in_flight_at(now)
    assert not later.in_flight_at(between)
    assert not earlier.in_flight_at(earlier.since_ns - 1)


@pytest.mark.parametrize(
    ("error", "counted"),
    [(code, 3) for code in (214, 220, 700, 719, 799, 805, 809, 999)] + [(code, 8) for code in (1, 400, 600, 801, 900)],
)
def test_launches_after_a_fatal_error_do_not_count(error: int, counted: int, cuda: StandInCuda, client: Client) -> None:
    """Other errors are of one call only: CUDA_ERROR_INVALID_VALUE, or one during a capture."""
    variables = {"STANDIN_CUDA_FAULTY_FROM": "3", "STANDIN_CUDA_FAULTY_WITH": str(error)}
    with cuda.started(Work(launches=8, each=1), **variables) as program:
        program.end()
    works = sums(client.probes.read())
    reading = client.recorder.read(
        client.probes, works, {program.pid}, KernelReading(at=1.0, boot_ns=boot_ns(), at_fault=True)
    )
    ((launched,),) = (client.last for client in reading.clients)

    assert works[program.pid].kernels == 8
    assert (launched.launches, launched.completed, launched.until_ns) == (counted, 2, 0)
    assert (works[program.pid].failed_ns > 0) == (counted == 3)


def test_more_kernels_than_places_leave_the_last_ones(client: Client) -> None:
    for number in range(1_000, 1_200):
        client.launch(client.made("cuModuleGetFunction", 7, b"kernel_%d" % number))
    found = client.read().last

    assert len(found) <= 64
    assert [each.name and each.name.raw for each in found[:4]] == [f"kernel_{1_199 - back}" for back in range(4)]
    assert all(each.launches == 1 for each in found)


def test_what_runs_is_of_the_last_minute(client: Client) -> None:
    """The slow kernel takes longer than a busy machine lets the program wait in the fast one's 20 launches."""
    slow, fast = (client.made("cuModuleGetFunction", 7, name) for name in (b"slow_200000000", b"fast_1000"))
    for kernel, launches in ((slow, 2), (fast, 20)):
        for _ in range(launches):
            client.launch(kernel)
            client.call("cuCtxSynchronize")

    first, second = client.read(seconds=10.0, after=10.0).most

    assert first.name is not None
    assert (first.name.raw, first.launches_per_second, first.width) == ("slow_200000000", 0.2, 6)
    assert (second.launches_per_second, second.nodes) == (2.0, ())
    assert 0.5 < first.flight_ratio <= 1 - second.flight_ratio + 0.05


def test_what_does_not_run_any_more_is_not_shown(client: Client) -> None:
    client.launch(client.made("cuModuleGetFunction", 7, b"once_1000"))
    client.call("cuCtxSynchronize")
    assert len(client.read(after=0.0, at_fault=False).most) == 1
    assert client.read(after=61.0, at_fault=False).most == ()


def flood(cuda: StandInCuda, number: int) -> int:
    """Get so many names in a process of another user, and return its PID."""
    with subprocess.Popen((sys.executable, "-c", FLOOD, str(cuda.library), str(NOBODY), str(number))) as process:
        assert process.wait() == 0
    return process.pid


def test_a_user_who_gets_many_names_at_once_loses_some_and_no_other_user_does(
    client: Client, cuda: StandInCuda
) -> None:
    client.launch(1_000)

    def loses_some() -> bool:
        client.read()
        pid = flood(cuda, 6_500)  # the ring has room for 7,000
        return any(work.pid == pid and work.unnamed for work in client.probes.read())

    until(loses_some)
    client.launch(client.made("cuModuleGetFunction", 7, b"first_1000"))
    read = client.read()

    assert (names(read), read.names_lost) == ({"first_1000": 1}, 0)


def test_a_process_has_no_names_from_before_one_was_lost(client: Client, cuda: StandInCuda) -> None:
    """What was lost may have given a handle another name."""
    client.launch(client.made("cuModuleGetFunction", 7, b"first_1000"))
    assert names(client.read()) == {"first_1000": 1}
    for number in range(20_000):
        client.made("cuModuleGetFunction", 7, b"kernel_%d" % (number + 5_000))
    lost = client.read()

    assert lost.names_lost > 0
    assert names(lost) == {None: 1}

    def named_again() -> bool:
        client.launch(client.made("cuModuleGetFunction", 7, b"first_1000"))
        return names(client.read()) == {"first_1000": 1}

    until(named_again)


def test_the_tenant_with_the_most_handles_loses_its_oldest_ones() -> None:
    handles = Handles(lambda _: 1, lambda pid: "many" if pid < 10 else "few")
    for pid in (1, 2, 11):
        count = 100 if pid == 11 else MOST_PLACES
        handles.take(Message(pid, MessageKind.NAMED, 1, number, 7, b"kernel\0") for number in range(1, count + 1))

    assert all(handles.names(11, number, 1)[0] == "kernel" for number in range(1, 101))
    known = [[n for n in range(1, MOST_PLACES + 1) if handles.names(pid, n, 1)[0] is not None] for pid in (1, 2)]
    assert sum(map(len, known)) in range(MOST_PLACES // 2, MOST_PLACES - 99)
    assert known[1] == [*range(MOST_PLACES + 1 - len(known[1]), MOST_PLACES + 1)]


def test_long_names_take_more_places() -> None:
    handles = Handles(lambda _: 1, lambda _: "user")
    long = b"x" * 4_000
    handles.take(Message(1, MessageKind.NAMED, 1, number, 7, b"%d" % number + long) for number in range(1, 3_001))

    assert sum(handles.names(1, number, 1)[0] is not None for number in range(1, 3_001)) <= MOST_PLACES // 16


def test_a_process_with_the_pid_of_another_has_none_of_its_names() -> None:
    starts = {1: 100}
    handles = Handles(starts.get, lambda _: "user")
    handles.take([Message(1, MessageKind.NAMED, 1, 1_000, 7, b"first\0")])
    starts.clear()
    handles.take([Message(1, MessageKind.GONE, 2, 9, 0, b"")])
    assert handles.names(1, 1_000, 2)[0] == "first"
    starts[1] = 101
    handles.take([Message(1, MessageKind.NAMED, 3, 2_000, 7, b"second\0")])

    assert (handles.names(1, 1_000, 3)[0], handles.names(1, 2_000, 3)[0]) == (None, "second")
