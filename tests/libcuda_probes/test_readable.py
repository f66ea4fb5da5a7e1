"""Kernels get names that fit a table, whatever a workload calls them and whatever happens to the demangler."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from exporter.libcuda_probes import readable
from exporter.libcuda_probes.readable import LONGEST_NAME, MOST_BYTES, MOST_NAMES, WIDTH, ReadableNames
from exporter.model.kernels import KernelName
from tests.clocks import FrozenClock, HandClock
from tests.eventually import until

COMMAND = readable.demangle_command()

NAMES = {
    # PyTorch
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_": (
        "vectorized_elementwise_kernel<…FillFunctor<float>, array<ch…"
    ),
    "_ZN2at6native18elementwise_kernelILi128ELi2EZNS0_15gpu_kernel_implINS0_15CUDAFunctor_addIfEEEEvRNS_18"
    "TensorIteratorBaseERKT_EUliE_EEviT1_": "elementwise_kernel<…gpu_kernel_impl<CUDAFunctor_add<float>>>",
    "_ZN2at6native18elementwise_kernelILi128ELi4EZNS0_22gpu_kernel_impl_nocastIZZZNS0_23direct_copy_kernel_cudaERNS_18"
    "TensorIteratorBaseEENKUlvE1_clEvENKUlvE8_clEvEUlN3c104HalfEE_EEvS4_RKT_EUliE_EEviT1_": (
        "elementwise_kernel<…gpu_kernel_impl_nocast<direct_copy_kern…"
    ),
    "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfNS0_14func_wrapper_tIfZNS0_11sum_functorIfffEclERNS_14"
    "TensorIteratorEEUlffE_EEjfLi4EEEEEvT1_": "reduce_kernel<…ReduceOp<float, func_wrapper_t<float, sum_fu…",
    "_ZN2at6native53_GLOBAL__N__87a90936_20_layer_norm_kernel_cu_3ff0b71f39layer_norm_grad_input_kernel_vectorizedIffLb0"
    "EEEvPKT_S5_PKT0_S8_S5_PS3_i": "layer_norm_grad_input_kernel_vectorized<float, float, false>",
    # nvcc with -rdc=true
    "__nv_static_25__6598e477_4_k_cu_acc5a52f__Z6hiddenPf": "hidden",
    "__nv_static_25__26c66259_4_k_cu__Z4hosti__ZN36_GLOBAL__N__26c66259_4_k_cu__Z4hosti5namedEPf": "named",
    # CUTLASS and cuBLAS
    "_ZN7cutlass7Kernel2I43cutlass_80_simt_sgemm_256x128_8x4_nn_align1EEvNT_6ParamsE": (
        "Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>"
    ),
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>, cutlass::gemm::"
    "collective::CollectiveMma<cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<4> > > >(T::Params)": (
        "device_kernel<GemmUniversal<…CollectiveMma<MainloopSm90TmaG…"
    ),
    "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, 7, false>(Params<int, float>)": (
        "kernel<int, int, float, 7, false>"
    ),
    "ampere_sgemm_128x64_nn": "ampere_sgemm_128x64_nn",
    # Triton, JAX, numba, Rust, C++
    "triton_poi_fused_add_0": "triton_poi_fused_add_0",
    "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_view_native_layer_norm_12": (
        "triton_red_fused__to_copy_add_mean_mul_pow_…ve_layer_norm_12"
    ),
    "fusion_12": "fusion_12",
    "input_reduce_fusion": "input_reduce_fusion",
    "_ZN6cudapy8__main__4blurB2v1B8cw51cXTLE5ArrayIfLi2E1C7mutable7alignedEx": "blur",
    "_ZN11rust_kernel4math6saxpy217h0123456789abcdefE": "saxpy2",
    "_RINvC7mycrate6kernelfE": "kernel<f32>",
    "_ZN12_GLOBAL__N_13addEPKfPf": "add",
    "_Z5scaleIfEvPT_f": "scale<float>",
}


def shorts(raws: Sequence[str], names: ReadableNames) -> list[str]:
    return [name.short for name in names.names(raws).values()]


def demangled(raws: Sequence[str], names: ReadableNames | None = None) -> Mapping[str, KernelName]:
    """Return the names after all are demangled: on a slow machine, it takes several children."""
    found = names or ReadableNames(HandClock(), COMMAND)
    until(lambda: found.names(raws) is found._last)
    return found._last


def test_shortens_names_of_kernels() -> None:
    assert {raw: name.short for raw, name in demangled([*NAMES]).items()} == NAMES
    assert max(map(len, NAMES.values())) == WIDTH


def tile(m: int) -> str:
    """Return a name like that of a kernel of CUTLASS 3, with this tile."""
    sizes = "".join(f"N4cute1CILi{size}EEE" for size in (m, 128, 64))
    layouts = "N4cute6LayoutIN4cute5tupleIJN4cute1CILi1EEES_EEEEE" * 40
    mainloop = "N7cutlass4gemm34MainloopSm90TmaGmmaWarpSpecializedILi4EN4cute5tupleIJN4cute1CILi2EEEEEEEE"
    return (
        "_ZN7cutlass13device_kernelIN7cutlass4gemm6kernel13GemmUniversalIN4cute5tupleIJiiiiEEE"
        f"N7cutlass4gemm10collective13CollectiveMmaI{mainloop}N4cute5tupleIJ{sizes}EEE{layouts}EEEEEEvNT_6ParamsE"
    )


def test_long_names_that_would_look_the_same_differ_and_stay() -> None:
    names = ReadableNames(HandClock(), COMMAND)
    raws = [tile(64), tile(128), tile(256)]
    found = [name.short for name in demangled(raws, names).values()]
    assert min(map(len, raws)) > 2000
    assert len(set(found)) == 3
    assert {short[: -len("123abc")] for short in found} == {"device_kernel<GemmUniversal<…CollectiveMma<Mainloop… #"}
    assert shorts(raws[:2], names) == found[:2]
    assert shorts(raws[:1], names) == ["device_kernel<GemmUniversal<…CollectiveMma<MainloopSm90TmaG…"]


HOSTILE = [
    "",
    " ",
    "two\nlines",
    "_Z3addv\n_Z3subv",
    "_Z3addv\0",
    "\x1b[31m",
    "\u202e_Z3addv",
    "\udc80\udcff",
    "k\N{LATIN SMALL LETTER E WITH ACUTE}rnel",
    "_ZQQ",
    "_Z",
    "_R",
    "_Z9999999999a",
    "__nv_static_9999_",
    "__nv_static_1__a_\n",
    "_Z3add" * 600,
    "_Z" + "N" * 4093,
    "a" * 5000,
    "_Z4094" + "a" * 4094 + "v",
    "(" * 4095,
    "<" * 4095,
    "f<" + "1, " * 1300,
    "a::" * 1300,
]


def test_survives_hostile_names() -> None:
    names = demangled([*HOSTILE, "_Z3mulPf"])
    assert [*names] == [*HOSTILE, "_Z3mulPf"]
    assert names["_Z3mulPf"].short == "mul"
    for raw, name in names.items():
        assert len(name.short) <= WIDTH
        assert len(name.raw) == min(len(raw), LONGEST_NAME)
        assert (name.short + name.raw).isprintable()


# -- Children that fail


class Stepping(HandClock):
    """Each reading takes a millisecond, so that a child takes time."""

    def monotonic(self) -> float:
        self.time += 0.001
        return self.time


def child(directory: Path, program: str) -> tuple[str, ...]:
    """Return a command that runs this program, and counts its runs in a file of the directory."""
    return ("/bin/sh", "-c", f"echo >>{directory}/runs; {program}")


def runs(directory: Path) -> int:
    path = directory / "runs"
    return path.read_text().count("\n") if path.exists() else 0


@pytest.mark.parametrize(
    "program",
    [
        "exit 3",
        "kill -9 $$",
        "cat >/dev/null; printf 'a()\nb()\nc()\nd()\n'",
        "printf 'unfinished'",
        "yes",
        "exec sleep 99",
    ],
    ids=["ends", "killed", "too many lines", "half a line", "too much", "hangs"],
)
def test_shows_raw_names_if_the_child_fails(program: str, tmp_path: Path) -> None:
    names = ReadableNames(FrozenClock(), child(tmp_path, program))
    long = "_ZN2at6native" + "x" * 100
    assert shorts(["_Z3addv", "_Z3mulv", "plain", long], names) == [
        "_Z3addv",
        "_Z3mulv",
        "plain",
        f"{long[:43]}…{'x' * 16}",
    ]
    assert runs(tmp_path) == 1


@pytest.mark.parametrize("command", [None, ("/nonexistent",)], ids=["not installed", "cannot be started"])
def test_shows_raw_names_without_a_demangler(command: tuple[str, ...] | None) -> None:
    assert shorts(["_Z3addv", "void n::f<int>(int)"], ReadableNames(FrozenClock(), command)) == ["_Z3addv", "f<int>"]


def test_finds_no_command_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readable, "find_spec", lambda _name: None)
    assert readable.demangle_command() is None


def test_tries_again_after_a_pause(tmp_path: Path) -> None:
    clock = Stepping()
    names = ReadableNames(clock, child(tmp_path, f"test -e {tmp_path}/works && printf 'add()\n'"))
    assert shorts(["_Z3addv"], names) == ["_Z3addv"]
    (tmp_path / "works").touch()
    assert shorts(["_Z3addv"], names) == ["_Z3addv"], "at most one child in a while"
    assert runs(tmp_path) == 1
    clock.time += 100
    assert shorts(["_Z3addv"], names) == ["add"]
    clock.time += 100
    assert shorts(["_Z3addv"], names) == ["add"]
    assert runs(tmp_path) == 2, "it is stored"


def test_new_names_in_each_call_start_few_children(tmp_path: Path) -> None:
    clock = Stepping()
    names = ReadableNames(clock, child(tmp_path, "cat >/dev/null; echo"))
    for second in range(60):
        clock.time += 0.001
        names.names([f"_Z3addILi{second}EEvv"])
    assert 1 <= runs(tmp_path) <= 3, "2 % of the time"


def test_starts_no_child_for_plain_names(tmp_path: Path) -> None:
    names = ReadableNames(FrozenClock(), child(tmp_path, "cat"))
    assert shorts(["fusion_12", "ampere_sgemm_128x64_nn", "_start"], names) == [
        "fusion_12",
        "ampere_sgemm_128x64_nn",
        "_start",
    ]
    assert runs(tmp_path) == 0


@pytest.mark.parametrize(("count", "size"), [(1000, 10), (50, LONGEST_NAME)], ids=["names", "bytes"])
def test_gives_a_child_a_bounded_batch_and_all_names_in_turn(count: int, size: int, tmp_path: Path) -> None:
    clock = Stepping()
    names = ReadableNames(clock, child(tmp_path, f"tee {tmp_path}/given | sed 's/.*/done/'; echo"))
    raws = [f"_Z{number:04d}".ljust(size, "a") for number in range(count)]
    done = 0
    while done < count:
        before, done = done, sum(short.startswith("done") for short in shorts(raws, names))
        assert done > before
        given = (tmp_path / "given").read_bytes()
        assert len(given) <= MOST_BYTES
        assert given.count(b"\n") < MOST_NAMES
        clock.time += 1000


def test_stores_a_bounded_number_of_names() -> None:
    names = ReadableNames(FrozenClock(), None)
    raws = [f"kernel_{number}" for number in range(readable.MOST_STORED + 100)]
    assert shorts(raws, names) == shorts(raws, names) == raws
    assert len(names._stored) == readable.MOST_STORED


# -- Names that a demangler does not survive: a stand-in of the library

LIBRARY = """
import os
import resource
def demangle(name):
    if "dies" in name:
        os.abort()
    while "spins" in name:
        pass
    if "eats" in name:
        bytearray(1 << 28)
    if "writes" in name:
        return "x" * 100_000
    if "rights" in name:
        return next(line for line in open("/proc/self/status") if line.startswith("CapEff")).replace("\\t", "")
    return f"void good::{name[3:]}()"
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    (tmp_path / "pycxxfilt.py").write_text(LIBRARY)
    return tmp_path


def names_of(library: Path) -> ReadableNames:
    """Return names that the library in this directory demangles."""
    assert COMMAND is not None
    return ReadableNames(HandClock(), (*COMMAND[:-1], str(library)))


def test_a_name_that_ends_the_demangler_costs_the_others_nothing(library: Path) -> None:
    bad = ["_Z4dies", "_Z5spins", "_Z4eats"]
    found = demangled(["_Z1a", *bad, "_Z6writes", "_Z1b"], names_of(library))
    assert [name.short for name in found.values()] == ["a", *bad, "x" * 43 + "…" + "x" * 16, "b"]


def test_many_such_names_only_delay_the_others(library: Path) -> None:
    names = names_of(library)
    raws = [*(f"_Z5spins{number}" for number in range(100)), "_Z1a"]
    until(lambda: shorts(raws, names)[-1] == "a")
    assert shorts(raws, names) == [*raws[:-1], "a"]


def test_the_child_has_no_capabilities(library: Path) -> None:
    assert demangled(["_Z6rights"], names_of(library))["_Z6rights"].short == f"CapEff:{0:016x}"
