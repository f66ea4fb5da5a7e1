"""Limits of GPU memory by cgroup, read from a tree as the kernel's documentation describes it."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.collectors.device_memory import MAX_CGROUPS, DeviceMemories
from exporter.collectors.nvml.driver import DriverError
from exporter.model.device_memory import CgroupLimit, DeviceMemory, DeviceMemoryReading
from exporter.model.problem import Problem, ProblemCode
from exporter.parse.dmem import MAX_BYTES

GPU, OTHER = "0000:00:06", "0000:41:00"
REGION, OTHER_REGION = "nvidia/00000000:00:06.0/vidmem", "nvidia/0000:41:00.0/vidmem"
"""Driver 615.71 with Linux 7.0 writes eight digits of the domain."""
GIB = 1 << 30


class Cgroups:
    """A tree of cgroups, and the exporter's own cgroup in it."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "cgroup"
        self.proc = directory / "proc"
        self.asked: list[Path] = []
        (self.proc / "self").mkdir(parents=True)
        self.runs_in("/system.slice/exporter.service")
        self.cgroup("/", capacity=f"{REGION} {80 * GIB}\n{OTHER_REGION} {80 * GIB}\ndrm/0000:03:00.0/vram0 4096\n")
        self.cgroup("/system.slice/exporter.service")

    def runs_in(self, path: str) -> None:
        (self.proc / "self" / "cgroup").write_text(f"0::{path}\n")

    def cgroup(self, path: str, **files: str) -> Path:
        directory = self.root / path.strip("/")
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (directory / f"dmem.{name}").write_text(text)
        return directory

    def read(self, *paths: str, by_nvml: Mapping[str, DeviceMemory | None] | None = None) -> DeviceMemoryReading:
        def ask(directory: Path) -> Mapping[str, DeviceMemory] | None:
            self.asked.append(directory)
            found = (by_nvml or {}).get("/" + str(directory.relative_to(self.root)))
            return None if found is None else {GPU: found}

        collector = DeviceMemories(self.root, self.proc, SystemClock(), by_nvml=ask)
        collector.watch(frozenset(paths))
        (reading,) = collector.collect().observations
        assert isinstance(reading, DeviceMemoryReading)
        return reading


@pytest.fixture
def cgroups(tmp_path: Path) -> Cgroups:
    return Cgroups(tmp_path)


def hard(cgroup: str, limit: int | str, used: int | None = None) -> CgroupLimit:
    return CgroupLimit(cgroup=cgroup, limit=int(limit), used=used)


def limited(limit: object, current: int = 0, low: int = 0) -> dict[str, str]:
    return {"max": f"{REGION} {limit}\n", "current": f"{REGION} {current}\n", "min": f"{REGION} {low}\n"}


def test_reads_limit_and_use_of_a_cgroup(cgroups: Cgroups) -> None:
    cgroups.cgroup("/pod", **limited(8 * GIB, 3 * GIB, 2 * GIB))
    reading = cgroups.read("/pod")
    memory = DeviceMemory(limits=(hard("/pod", 8 * GIB, 3 * GIB),), soft_limit=2 * GIB, used=3 * GIB)
    assert reading.cgroups == {"/pod": {GPU: memory}}
    assert reading.capacity == {GPU: 80 * GIB, OTHER: 80 * GIB}
    assert not cgroups.asked


@pytest.mark.parametrize(("outer", "inner"), [(4, 8), (8, 4), (4, 4), ("max", 1), (1, "max")])
def test_the_limits_of_all_cgroups_on_the_path_hold(cgroups: Cgroups, outer: int | str, inner: int | str) -> None:
    cgroups.cgroup("/pod", **limited(outer, 3))
    cgroups.cgroup("/pod/main", **limited(inner, 2))
    found = cgroups.read("/pod/main").cgroups["/pod/main"][GPU]
    limits = [
        hard(path, each, used) for path, each, used in (("/pod", outer, 3), ("/pod/main", inner, 2)) if each != "max"
    ]
    assert (list(found.limits), found.used) == (limits, 2)
    assert found.limit == min(limit.limit for limit in limits)


def test_max_is_no_limit(cgroups: Cgroups) -> None:
    cgroups.cgroup("/pod", **limited("max", 5))
    assert cgroups.read("/pod").cgroups["/pod"][GPU] == DeviceMemory(soft_limit=0, used=5)


def test_memory_of_a_cgroup_without_the_controller_is_that_of_its_parent(cgroups: Cgroups) -> None:
    cgroups.cgroup("/pod", **limited(8, 3))
    cgroups.cgroup("/pod/main")
    assert cgroups.read("/pod/main").cgroups["/pod/main"] == cgroups.read("/pod").cgroups["/pod"]


def test_each_gpu_has_its_own_limit(cgroups: Cgroups) -> None:
    cgroups.cgroup("/pod", max=f"{REGION} 8\n{OTHER_REGION} max\n")
    assert {gpu: each.limit for gpu, each in cgroups.read("/pod").cgroups["/pod"].items()} == {GPU: 8, OTHER: None}


@pytest.mark.parametrize(
    "line",
    [
        "drm/0000:03:00.0/vram0 7",
        "nvidia/../vidmem 7",
        f"{REGION} -7",
        f"{REGION} 7 7",
        f"{REGION}",
        "\0\udcff",
        "",
        f"{REGION} \u0667",
    ],
)
def test_ignores_unknown_regions_and_garbage(cgroups: Cgroups, line: str) -> None:
    cgroups.cgroup("/pod").joinpath("dmem.max").write_bytes(
        f"{line}\n{OTHER_REGION} 9\n".encode(errors="surrogateescape")
    )
    assert cgroups.read("/pod").cgroups["/pod"] == {OTHER: DeviceMemory(limits=(hard("/pod", 9),))}


def test_a_cgroup_with_a_file_that_is_too_long_is_unknown(cgroups: Cgroups) -> None:
    text = f"{REGION} 8\n" * 10_000
    assert len(text) > MAX_BYTES
    cgroups.cgroup("/pod", max=text)
    cgroups.cgroup("/other", **limited(4))
    assert cgroups.read("/pod", "/other").cgroups.keys() == {"/other"}


def test_follows_no_links(cgroups: Cgroups, tmp_path: Path) -> None:
    real = cgroups.cgroup("/pod", **limited(8))
    (cgroups.root / "link").symlink_to(real)
    cgroups.cgroup("/file").joinpath("dmem.max").symlink_to(real / "dmem.max")
    assert cgroups.read("/pod", "/link", "/file").cgroups.keys() == {"/pod"}


def test_a_removed_cgroup_is_absent(cgroups: Cgroups) -> None:
    assert cgroups.read("/gone").cgroups == {}


def test_reads_a_limited_number_of_cgroups(cgroups: Cgroups) -> None:
    paths = [f"/pod{number}" for number in range(MAX_CGROUPS + 5)]
    for path in paths:
        cgroups.cgroup(path, max=f"{REGION} 8\n")
    assert len(cgroups.read(*paths).cgroups) == MAX_CGROUPS


def test_without_cgroup_v2_nothing_is_known(cgroups: Cgroups, tmp_path: Path) -> None:
    collector = DeviceMemories(tmp_path / "none", cgroups.proc, SystemClock())
    (reading,) = collector.collect().observations
    assert isinstance(reading, DeviceMemoryReading)
    assert (reading.cgroups, reading.own, reading.capacity) == ({}, None, {})


def test_without_clients_and_an_own_path_there_is_only_the_capacity(cgroups: Cgroups) -> None:
    cgroups.runs_in("/../exporter")
    reading = cgroups.read()
    assert (reading.cgroups, reading.own, len(reading.capacity)) == ({}, None, 2)


def test_reads_the_limit_of_the_exporter(cgroups: Cgroups) -> None:
    cgroups.cgroup("/system.slice/exporter.service", **limited(8))
    assert own_limit(cgroups) == 8


def test_the_own_limit_is_unknown_below_a_hidden_root(cgroups: Cgroups) -> None:
    (cgroups.root / "dmem.capacity").unlink()
    cgroups.cgroup("/", **limited("max"))
    cgroups.runs_in("/")
    assert cgroups.read().own is None
    cgroups.cgroup("/", **limited(8))
    assert own_limit(cgroups) == 8
    cgroups.cgroup("/", **limited("max", low=8))
    assert own_limit(cgroups) is None


def own_limit(cgroups: Cgroups) -> int | None:
    own = cgroups.read().own
    assert own is not None
    return own[GPU].limit


def test_asks_nvml_if_the_controller_does_not_have_the_gpus(cgroups: Cgroups) -> None:
    (cgroups.root / "dmem.capacity").write_text("drm/0000:03:00.0/vram0 4096\n")
    assert cgroups.read("/pod", by_nvml={"/pod": DeviceMemory(limits=(hard("", 4),))}).cgroups == {
        "/pod": {GPU: DeviceMemory(limits=(hard("/pod", 4),))}
    }


def test_the_exporter_has_no_limit_if_nvml_reports_none(cgroups: Cgroups) -> None:
    (cgroups.root / "dmem.capacity").unlink()
    cgroups.runs_in("/pod")
    assert cgroups.read(by_nvml={"/pod": DeviceMemory(used=1)}).own == {GPU: DeviceMemory(used=1)}


def test_asks_nvml_once_for_each_cgroup(cgroups: Cgroups) -> None:
    (cgroups.root / "dmem.capacity").unlink()
    cgroups.read("/pod/one", "/pod/two", "/pod")
    names = [each.relative_to(cgroups.root).as_posix() for each in cgroups.asked]
    assert sorted(names) == ["pod", "pod/one", "pod/two", "system.slice", "system.slice/exporter.service"]


def test_asks_a_closed_driver_once(cgroups: Cgroups) -> None:
    """Each question waits for the driver, so that many cgroups would exceed the deadline."""
    (cgroups.root / "dmem.capacity").unlink()
    asked = []

    def ask(directory: Path) -> None:
        asked.append(directory)
        raise DriverError(Problem(code=ProblemCode.PAUSED))

    collector = DeviceMemories(cgroups.root, cgroups.proc, SystemClock(), by_nvml=ask)
    collector.watch(frozenset(("/one", "/two")))
    reading = collector.collect()
    (memory,) = reading.observations
    assert isinstance(memory, DeviceMemoryReading)
    assert (memory.cgroups, memory.own, reading.problem, len(asked)) == ({}, None, None, 1)


@pytest.mark.parametrize(
    ("own", "soft", "counts", "of", "used"),
    [(8, 1, 8, "/pod/main", 2), (None, 0, 4, "/pod", 3), (None, 1, None, None, None)],
)
def test_without_a_controller_the_limit_of_the_nearest_cgroup_counts(
    cgroups: Cgroups, own: int | None, soft: int, counts: int | None, of: str | None, used: int | None
) -> None:
    """NVIDIA's MPS guide, release 615: limits do not nest, and a cap of a parent does not bound limited children."""
    (cgroups.root / "dmem.capacity").unlink()
    limits = () if own is None else (hard("", own),)
    by_nvml = {
        "/pod": DeviceMemory(limits=(hard("", 4),), used=3),
        "/pod/main": DeviceMemory(limits=limits, soft_limit=soft, used=2),
    }
    found = cgroups.read("/pod/main", by_nvml=by_nvml)
    limits = () if counts is None or of is None else (hard(of, counts, used),)
    memory = DeviceMemory(limits=limits, soft_limit=soft, used=2)
    assert found.cgroups == {"/pod/main": {GPU: memory}}
    assert found.own is None


def test_a_cgroup_that_nvml_does_not_know_is_unknown(cgroups: Cgroups) -> None:
    (cgroups.root / "dmem.capacity").unlink()
    assert cgroups.read("/pod").cgroups == {}
