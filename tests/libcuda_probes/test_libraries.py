"""Discovery of libcuda files and their probe points, with hostile files among the mapped ones."""

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from exporter.collectors.proc import Proc
from exporter.libcuda_probes.libraries import (
    LAST_INTERVAL_SECONDS,
    MAX_LIBRARIES,
    RETENTION_SECONDS,
    RETRY_SECONDS,
    Found,
    Libraries,
    Library,
)
from exporter.parse.elf import Machine
from tests.clocks import HandClock
from tests.libcuda_probes.mapping_processes import MappingProcess, mapping
from tests.shared_objects import EXPORTED, shared_object
from tests.tools import needed, not_here

MACHINE = {"x86_64": Machine.X86_64, "aarch64": Machine.ARM64}[os.uname().machine]
NAME = "libcuda.so.1"
OTHER_USER = 54321

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: needs root, for mounts and others' files")


class NodeProc(Proc):
    """Records the PIDs of which the mappings were read. Processes can have other cgroups and users than here."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__(Path("/proc"), clock)
        self.reads: list[int] = []
        self.cgroups: dict[int, str] = {}
        self.users: dict[int, int] = {}

    def mappings(self, pid: int, about: bytes) -> list[bytes] | None:
        self.reads.append(pid)
        return super().mappings(pid, about)

    def text(self, pid: int, name: str, limit: int = 4096) -> str | None:
        if name == "cgroup" and pid in self.cgroups:
            return f"0::{self.cgroups[pid]}\n"
        return super().text(pid, name, limit)

    def status(self, pid: int) -> str | None:
        return f"Uid:\t{self.users[pid]}\t0\n" if pid in self.users else super().status(pid)


class Node:
    """The libcuda files of a node, and a clock."""

    def __init__(self, own: Path) -> None:
        self.clock = HandClock()
        self.proc = NodeProc(self.clock)
        self.libraries = Libraries(self.proc, self.clock, MACHINE, (own,))

    def place(self, process: MappingProcess, cgroup: str, user: int = 0) -> MappingProcess:
        """Put a process into a cgroup, as a user."""
        self.proc.cgroups[process.pid], self.proc.users[process.pid] = cgroup, user
        return process

    def collect(self, *processes: MappingProcess, after: float = 0.0, clients: Sequence[MappingProcess] = ()) -> Found:
        self.clock.time += after
        return self.libraries.find([process.pid for process in processes], [client.pid for client in clients])

    def watched(
        self, *processes: MappingProcess, after: float = 0.0, clients: Sequence[MappingProcess] = ()
    ) -> set[str]:
        """Return the paths of the libraries that are watched. There may be problems."""
        return {library.path for library in self.collect(*processes, after=after, clients=clients).libraries}

    def paths(self, *processes: MappingProcess, after: float = 0.0) -> dict[str, tuple[int, ...]]:
        """Return the processes of each library, by its path. Assert that there is no problem."""
        found = self.collect(*processes, after=after)
        assert found.problems == ()
        return {library.path: library.pids for library in found.libraries}

    def refused(self, *processes: MappingProcess, after: float = 0.0) -> str:
        """Return why the only library is not watched."""
        found = self.collect(*processes, after=after)
        (problem,) = found.problems
        assert found.libraries == ()
        return problem.partition(" is not watched: ")[2]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path / "own" / NAME)
    before = set(os.listdir("/proc/self/fd"))
    yield made
    made.libraries.close()
    assert set(os.listdir("/proc/self/fd")) <= before, "descriptors leak"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_object(tmp_path_factory.mktemp("library") / "libcuda.so.580.159.04")


def copied(library: Path, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(library, path)
    return path


@pytest.fixture
def process() -> Iterator[MappingProcess]:
    with mapping() as made:
        yield made


# -- discovery --


def inode_of(library: Library) -> int:
    return Path(library.path_to_open).stat().st_ino


def test_finds_a_loaded_library_and_its_functions(node: Node, library: Path, process: MappingProcess) -> None:
    process.dlopen(library)
    (found,) = node.collect(process).libraries

    assert (found.path, found.pids) == (str(library), (process.pid,))
    assert set(found.offsets) == set(EXPORTED)
    assert os.path.samefile(found.path_to_open, library)


def test_finds_a_library_that_is_loaded_later(node: Node, library: Path, process: MappingProcess) -> None:
    assert node.paths(process) == {}
    process.dlopen(library)
    assert node.paths(process, after=LAST_INTERVAL_SECONDS) == {str(library): (process.pid,)}


def test_processes_with_the_same_file_share_one_library(node: Node, library: Path) -> None:
    with mapping(library) as first, mapping(library) as second:
        assert node.paths(first, second) == {str(library): tuple(sorted((first.pid, second.pid)))}


def test_finds_the_nodes_own_library_before_it_is_used(node: Node, library: Path, tmp_path: Path) -> None:
    own = tmp_path / "own" / NAME
    assert node.paths() == {}
    copied(library, own.with_name("libcuda.so.580"))
    own.symlink_to("libcuda.so.580")
    assert node.paths(after=RETRY_SECONDS) == {str(own): ()}
    assert node.paths(after=10 * RETENTION_SECONDS) == {str(own): ()}


def test_finds_the_new_and_the_used_old_library_after_an_upgrade(node: Node, library: Path, tmp_path: Path) -> None:
    own = copied(library, tmp_path / "own" / NAME)
    with mapping(own) as process:
        replaced = own.stat().st_ino
        node.collect(process)
        copied(library, own.with_name("new")).rename(own)
        for _ in range(3):
            both = node.collect(process, after=RETRY_SECONDS + RETENTION_SECONDS)
            assert both.problems == ()
            assert {inode_of(each): each.pids for each in both.libraries} == {
                replaced: (process.pid,),
                own.stat().st_ino: (),
            }
    (new,) = node.collect(after=2 * RETENTION_SECONDS).libraries
    assert inode_of(new) == own.stat().st_ino


def test_drops_a_library_some_time_after_its_last_process(node: Node, library: Path) -> None:
    with mapping(library) as process:
        node.collect(process)
    assert node.paths(process, after=RETENTION_SECONDS / 2) == {str(library): ()}
    assert node.paths(after=RETENTION_SECONDS) == {}


@as_root
def test_finds_a_library_of_another_mount_namespace(node: Node, library: Path, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    script = f"mount -t tmpfs none '{inside}' && cp '{library}' '{inside}/{NAME}' && exec \"$@\""
    with mapping(inside / NAME, enter=apart(script)) as process:
        assert not (inside / NAME).exists()
        assert node.paths(process) == {str(inside / NAME): (process.pid,)}


@as_root
def test_finds_a_library_of_a_process_with_another_root(node: Node, library: Path, tmp_path: Path) -> None:
    """The kernel shows its paths from the exporter's root, not from its own."""
    path = copied(library, tmp_path / "root" / "lib" / NAME)
    with mapping(path) as process:
        process.chroot(tmp_path / "root")
        assert node.paths(process) == {str(path): (process.pid,)}


@as_root
def test_one_file_below_two_overlays_is_one_library(node: Node, library: Path, tmp_path: Path) -> None:
    """For two containers of one image, a probe on the file of one is also on the file of the other."""
    copied(library, tmp_path / "image" / NAME)
    overlays = [overlay(tmp_path, name) for name in ("first", "second")]
    with (
        mapping(tmp_path / "first" / NAME, enter=overlays[0]) as first,
        mapping(tmp_path / "second" / NAME, enter=overlays[1]) as second,
    ):
        ((_, pids),) = node.paths(first, second).items()
        assert pids == tuple(sorted((first.pid, second.pid)))


@as_root
def test_reports_a_library_that_was_changed_in_its_container(node: Node, library: Path, tmp_path: Path) -> None:
    """Overlayfs copies it. The copy has the same device and inode, but not the probes."""
    copied(library, tmp_path / "image" / NAME)
    with mapping(tmp_path / "first" / NAME, enter=overlay(tmp_path, "first")) as process:
        assert node.collect(process).problems == ()
        Path(f"/proc/{process.pid}/root{tmp_path}/first/{NAME}").chmod(0o700)
        (problem,) = node.collect(process, after=RETRY_SECONDS).problems
        assert problem.startswith(f"{tmp_path}/first/{NAME} was changed in its container: ")


def overlay(directory: Path, name: str) -> list[str]:
    (directory / name).mkdir()
    above = directory / f"above-{name}"
    above.mkdir()
    options = f"lowerdir={directory / 'image'},upperdir={above}/upper,workdir={above}/work"
    return apart(
        f"mount -t tmpfs none '{above}' && mkdir '{above}/upper' '{above}/work' && "
        f"mount -t overlay overlay -o '{options}' '{directory / name}' && exec \"$@\""
    )


def apart(script: str) -> list[str]:
    if os.system(f"{needed('unshare')} --mount true") != 0:
        not_here("namespaces cannot be created")
    return [needed("unshare"), "--mount", "sh", "-c", script, "sh"]


# -- cost --


def test_reads_a_process_once(node: Node, library: Path, process: MappingProcess) -> None:
    process.dlopen(library)
    for _ in range(10):
        node.collect(process, after=1.0)
    assert node.proc.reads == [process.pid]


def test_reads_a_process_without_libcuda_less_and_less_often(node: Node, process: MappingProcess) -> None:
    for _ in range(300):
        node.collect(process, after=1.0)
    assert 5 < len(node.proc.reads) < 15


# -- refused files --


def test_refuses_a_file_without_the_functions(node: Node, tmp_path: Path) -> None:
    path = shared_object(tmp_path / NAME, source="int cuLaunchKernel(void) { return 1; }")
    with mapping(path) as process:
        assert node.refused(process) == "it does not have the functions of libcuda"


def test_function_with_two_names_is_one_probe_point(node: Node, tmp_path: Path) -> None:
    twice = """
        int cuLaunchKernel(void) { return 1; }
        int cuCtxSynchronize(void) { return 2; }
        int cuCtxSynchronize_v2(void) __attribute__((alias("cuCtxSynchronize")));
    """
    with mapping(shared_object(tmp_path / NAME, source=twice)) as process:
        (found,) = node.collect(process).libraries
    assert set(found.offsets) == {"cuLaunchKernel", "cuCtxSynchronize"}


def test_refuses_a_library_of_another_machine(node: Node, library: Path, tmp_path: Path) -> None:
    data = bytearray(library.read_bytes())
    data[18] = {62: 183, 183: 62}[data[18]]
    (tmp_path / NAME).write_bytes(data)
    with mapping(tmp_path / NAME) as process:
        assert "and this machine is" in node.refused(process)


@pytest.mark.parametrize("name", ["libcuda.so.1.bak", "libcudart.so.13", "libcuda.so.x", "notlibcuda.so"])
def test_ignores_files_with_other_names(name: str, node: Node, library: Path, tmp_path: Path) -> None:
    with mapping(copied(library, tmp_path / name)) as process:
        assert node.paths(process) == {}


def test_reports_a_file_that_was_replaced(node: Node, library: Path, tmp_path: Path) -> None:
    path = copied(library, tmp_path / NAME)
    with mapping(path) as process:
        path.unlink()
        assert node.refused(process).startswith("its file was replaced while the process ran")


@as_root
def test_refuses_a_name_that_was_reused_for_another_file(node: Node, library: Path, tmp_path: Path) -> None:
    """Between the reading of the maps and the opening, the name becomes a pipe, a device or another file."""
    path = copied(library, tmp_path / NAME)
    with mapping(path) as process:
        lines = Proc(Path("/proc"), node.clock).mappings(process.pid, b"libcuda.so")
        node.proc.mappings = lambda pid, about: lines  # type: ignore[method-assign]
        path.rename(path.with_name("moved"))
        os.mkfifo(path)
        assert node.refused(process) == "the file cannot be opened: it is not a regular file"
        path.unlink()
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))
        assert node.refused(process, after=RETRY_SECONDS) == "the file cannot be opened: it is not a regular file"
        path.unlink()
        copied(library, path)
        assert node.refused(process, after=RETRY_SECONDS) == "another file has its name now"
        path.unlink()
        path.symlink_to("moved")
        assert node.refused(process, after=RETRY_SECONDS) == "the file cannot be opened: it is not a regular file"
        path.unlink()
        assert node.refused(process, after=RETRY_SECONDS) == "the file does not exist any more"
        path.with_name("moved").rename(path)
        assert node.paths(process, after=RETRY_SECONDS) == {str(path): (process.pid,)}


CONTAINER = f"/system.slice/docker-{'7' * 64}.scope"
UNIT = "/system.slice/train.service"


def several(library: Path, directory: Path, count: int) -> list[Path]:
    return [copied(library, directory / str(number) / NAME) for number in range(count)]


@as_root
def test_a_container_with_all_places_leaves_them_to_other_workloads(node: Node, library: Path, tmp_path: Path) -> None:
    """As UID 0, it can have files of any owner, and processes of any UID in any mount namespace and cgroup below."""
    files = several(library, tmp_path / "container", MAX_LIBRARIES + 8)
    for number, path in enumerate(files):
        os.chown(path, OTHER_USER + number // 4, OTHER_USER)
    own_files = several(library, tmp_path / "users", 10)
    for path in own_files:
        os.chown(path, OTHER_USER, OTHER_USER)
    with (
        mapping(*files[::2]) as first,
        mapping(*files[1::2], enter=apart('exec "$@"')) as second,
        mapping(*own_files) as user,
    ):
        node.place(first, CONTAINER)
        node.place(second, f"{CONTAINER}/below", OTHER_USER)
        node.place(user, UNIT, OTHER_USER)
        assert len(node.watched(first, second)) == MAX_LIBRARIES

        watched = node.watched(first, second, user, after=1.0)
        assert len(watched) == MAX_LIBRARIES
        assert watched >= {str(path) for path in own_files}
        for _ in range(5):
            assert node.watched(first, second, user, after=RETRY_SECONDS) == watched, "places do not change"


@pytest.fixture
def few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.libcuda_probes.libraries.MAX_LIBRARIES", 3)


@pytest.mark.usefixtures("few_places")
def test_users_of_one_batch_system_have_places_in_turn(node: Node, library: Path, tmp_path: Path) -> None:
    greedy, modest = several(library, tmp_path / "greedy", 4), several(library, tmp_path / "modest", 1)
    with mapping(*greedy) as first, mapping(*modest) as second:
        node.place(first, "/system.slice/sge_execd.service", 1001)
        node.place(second, "/system.slice/sge_execd.service", 1002)
        node.collect(first)
        assert str(modest[0]) in node.watched(first, second)


@pytest.mark.usefixtures("few_places")
def test_a_user_with_many_sessions_and_namespaces_has_one_turn(
    node: Node, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any user can create mount namespaces, and user namespaces with other UIDs of their own."""
    files, modest = several(library, tmp_path / "greedy", 4), several(library, tmp_path / "modest", 1)
    namespace = Proc.namespace
    monkeypatch.setattr(Proc, "namespace", lambda self, pid, kind: pid if kind == "mnt" else namespace(self, pid, kind))
    with mapping(files[0]) as a, mapping(files[1]) as b, mapping(files[2]) as c, mapping(*modest) as other:
        monkeypatch.setattr(Proc, "user_namespace_owner", lambda _, pid: {c.pid: 1001}.get(pid))
        for number, process in enumerate((a, b, c)):
            node.place(process, f"/user.slice/user-1001.slice/session-{number}.scope", 1001 + 99000 * (process is c))
        node.place(other, "/user.slice/user-1002.slice/session-9.scope", 1002)
        assert str(modest[0]) in node.watched(a, b, c, other)


@pytest.mark.usefixtures("few_places")
def test_clients_and_the_nodes_own_library_have_places_first(node: Node, library: Path, tmp_path: Path) -> None:
    files = several(library, tmp_path, 4)
    with mapping(files[0]) as a, mapping(files[1]) as b, mapping(files[2]) as c, mapping(files[3]) as client:
        for number, process in enumerate((a, b, c, client)):
            node.place(process, f"/system.slice/job{number}.service")
        assert node.watched(a, b, c) == {str(path) for path in files[:3]}
        assert node.watched(a, b, c, client) == {str(path) for path in files[:3]}

        first = node.watched(a, b, c, client, after=RETRY_SECONDS, clients=[client])
        assert first == {str(files[0]), str(files[1]), str(files[3])}
        own = copied(library, tmp_path / "own" / NAME)
        own_first = node.watched(a, b, c, client, after=RETRY_SECONDS, clients=[client])
        assert own_first == {str(own), str(files[0]), str(files[3])}


@pytest.mark.usefixtures("few_places")
def test_a_file_does_not_lose_its_place_to_another_workload_that_maps_it_too(
    node: Node, library: Path, tmp_path: Path
) -> None:
    (shared,), others = several(library, tmp_path / "shared", 1), several(library, tmp_path / "others", 4)
    with mapping(*others, shared) as hostile, mapping(shared) as user:
        node.place(hostile, CONTAINER)
        node.place(user, UNIT)
        assert str(shared) in node.watched(hostile, user)


@pytest.mark.usefixtures("few_places")
def test_files_that_cannot_be_used_take_no_place(node: Node, library: Path, tmp_path: Path) -> None:
    source = "int cuLaunchKernel(void) { return 1; }"
    (tmp_path / "bad").mkdir()
    bad, good = shared_object(tmp_path / "bad" / NAME, source=source), several(library, tmp_path / "good", 3)
    with mapping(bad, *good) as process:
        assert node.watched(process) == {str(path) for path in good}


def test_limits_the_number_of_libraries(node: Node, library: Path, tmp_path: Path) -> None:
    with mapping(*(copied(library, tmp_path / str(number) / NAME) for number in range(MAX_LIBRARIES + 20))) as process:
        found = node.collect(process)
    if os.geteuid() == 0:
        assert len(found.libraries) == MAX_LIBRARIES
    assert found.problems[-1].endswith("more libcuda files are not watched")
    assert len(found.problems) < 10


def test_refuses_files_on_fuse(node: Node, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A FUSE server could block a page read forever, and with it all forks on the node."""
    monkeypatch.setattr("exporter.libcuda_probes.libraries._file_system", lambda _: 0x65735546)
    with mapping(copied(library, tmp_path / "served" / NAME)) as process:
        assert "FUSE" in node.refused(process)


@as_root
def test_refuses_private_files_of_another_user_namespace(node: Node, library: Path, tmp_path: Path) -> None:
    """In its user namespace, any user can mount a FUSE file system, also below an overlay."""
    private, shared = copied(library, tmp_path / "private" / NAME), copied(library, tmp_path / "own" / NAME)
    apart = [needed("unshare"), "--user", "--map-root-user", "--mount"]
    with mapping(private, enter=apart) as hostile, mapping(shared, enter=apart) as rootless:
        found = node.collect(hostile, rootless)

        assert [(each.path, each.pids) for each in found.libraries] == [(str(shared), (rootless.pid,))]
        assert [problem for problem in found.problems if "its own user namespace" in problem] == [*found.problems]
        assert len(found.problems) == 1


def test_problem_with_a_line_break_in_the_path_is_printable(node: Node, library: Path, tmp_path: Path) -> None:
    with mapping(copied(library, tmp_path / "a\nb" / NAME)) as process:
        (problem,) = node.collect(process).problems
    assert problem.isprintable()


def test_reports_unreadable_mappings(node: Node, process: MappingProcess) -> None:
    node.proc.mappings = lambda pid, about: None  # type: ignore[method-assign]
    (problem,) = node.collect(process).problems
    assert problem == f"cannot read the maps of PID {process.pid}: this needs CAP_SYS_PTRACE"


def test_ended_process_is_not_a_problem(node: Node, library: Path) -> None:
    with mapping(library) as process:
        pass
    assert node.paths(process) == {}
