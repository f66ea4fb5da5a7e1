"""GPUs and their memory."""

from collections.abc import Sequence
from dataclasses import replace

from exporter.model.observation import GpuReading
from exporter.page.cards import MOST_SEGMENTS, Segment, segments
from exporter.page.page import Page
from exporter.report.node_status import StatusInput, status_document
from exporter.report.text import mebibytes
from tests.builders import AT, GPU, failure, gpu_reading, idle, mig, reduced, slowed
from tests.page.html_reader import section
from tests.page.inputs import attributed, busy, full, no_daemon, status_input


def bars(data: StatusInput) -> list[Sequence[Segment] | None]:
    hues: dict[int, int] = {}
    return [segments(gpu, hues) for gpu in status_document(data).gpus]


def known_bars(data: StatusInput) -> list[Sequence[Segment]]:
    return [bar for bar in bars(data) if bar is not None]


def shown(data: StatusInput) -> str:
    return section(Page({}).node(data), "gpus").replace("\N{NO-BREAK SPACE}", " ")


def test_largest_processes_come_first_and_bypassing_ones_are_marked() -> None:
    _, second = known_bars(busy())
    assert "MPS, and processes that bypass it" in shown(busy())
    assert "6402 MiB of 144384 MiB · 137982 MiB free" in shown(busy())
    names = [(each.part, each.process.command if each.process else each.name) for each in second]
    assert names == [
        ("client", "eval.py"),
        ("bypassing", "jupyter-lab"),
        ("client", "train.py"),
        ("server", "1 MPS server"),
    ]
    assert [mebibytes(each.amount) for each in second] == ["4612 MiB", "1024 MiB", "700 MiB", "66 MiB"]


def test_segments_are_adjacent_and_proportional_to_memory() -> None:
    for bar in known_bars(full(gpus=1, clients=20)):
        ends = [each.begin + each.width for each in bar]
        assert all(abs(end - nxt.begin) < 0.02 for end, nxt in zip(ends, bar[1:], strict=False))
        assert abs(bar[0].width - 100 * 1500 / 144384) < 0.01


def test_smaller_processes_share_a_segment() -> None:
    (bar,) = known_bars(full(gpus=1))
    assert len(bar) == MOST_SEGMENTS + 2
    assert [each.name for each in bar[-2:]] == ["42 more", "1 MPS server"]


def test_a_process_on_two_gpus_has_one_colour() -> None:
    hues = {
        (each.process.pid, each.hue)
        for bar in known_bars(busy())
        for each in bar
        if each.process is not None and each.part == "client"
    }
    assert len(hues) == len({pid for pid, _ in hues}) == 3


def test_shows_memory_without_a_process() -> None:
    reading = replace(gpu_reading({600: 100}, at=AT + 1), memory_used_bytes=1000 << 20)
    (bar,) = known_bars(status_input(reduced(reading, start=idle()).node))
    assert (bar[-1].name, mebibytes(bar[-1].amount)) == ("driver", "834 MiB")


def test_the_memory_of_a_gpu_in_mig_mode_is_that_of_its_instances() -> None:
    whole, first, second = bars(status_input(mig()))
    assert (whole, second is None) == (None, False)
    assert "memory: see its MIG instances" in shown(status_input(mig()))
    assert [mebibytes(each.amount) for each in first or ()][:2] == ["2564 MiB", "1540 MiB"]


def test_an_unreadable_gpu_has_no_bar_and_is_not_idle() -> None:
    lost = status_input(reduced(GpuReading(at=AT + 1, gpu=GPU, problem=failure("GPU is lost")), start=idle()).node)
    assert bars(lost) == [None]
    text = shown(lost)
    assert "cannot be read" in text
    assert "NVML: GPU is lost. Check the driver with nvidia-smi memory unknown" in text


def test_a_gpu_without_processes_is_idle() -> None:
    free = status_input(reduced(gpu_reading(server=None, at=AT + 1), start=no_daemon().node).node)
    assert bars(free) == [[]]
    assert "GPU 0 idle" in shown(free)


def test_shows_sharing_in_sentences_and_for_each_process() -> None:
    text = shown(attributed())
    places = [text.index(each) for each in ("SMs 0.4 ± 0.2 %", "SMs 48.0 ± 1.2 %", "bypasses MPS 1024 MiB SMs 30.0")]
    assert places == sorted(places)
    assert "room for 1 more client like these, the smallest of: 1 by SM time" in text
    assert "memory bandwidth: 91 % is used" in text


def test_shows_slowed_clients() -> None:
    text = shown(status_input(slowed()))
    assert "slowed down: PID 600 (train.py) takes 4.9 times as long as on a quiet GPU" in text
    assert "slowed down: PID 602 (eval.py) takes at least 4.9 times as long as on a quiet GPU" in text


def test_no_sharing_without_clients() -> None:
    assert "client" not in shown(status_input(idle()))
