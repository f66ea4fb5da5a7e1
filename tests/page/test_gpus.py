"""GPUs and their memory."""

from dataclasses import replace

from exporter.model.observation import GpuReading
from exporter.page.cards import MOST_SEGMENTS, Part, gpus
from exporter.report.status_view import status_view
from tests.builders import AT, GPU, failure, gpu_reading, idle, mig, reduced, slowed
from tests.page.inputs import attributed, busy, full, no_daemon, status_input


def test_largest_processes_come_first_and_bypassing_ones_are_marked() -> None:
    _, second = gpus(status_view(busy()))
    assert (second.sharing, second.filled, second.free) == (
        "MPS, and processes that bypass it",
        "6402 MiB of 144384 MiB",
        "137982 MiB free",
    )
    assert [(each.part, each.name, each.amount) for each in second.segments] == [
        (Part.CLIENT, "eval.py", "4612 MiB"),
        (Part.BYPASSING, "jupyter-lab", "1024 MiB"),
        (Part.CLIENT, "train.py", "700 MiB"),
        (Part.SERVER, "1 MPS server", "66 MiB"),
    ]


def test_segments_are_adjacent_and_proportional_to_memory() -> None:
    for card in gpus(status_view(full(gpus=1, clients=20))):
        ends = [each.begin + each.width for each in card.segments]
        assert all(abs(end - nxt.begin) < 0.02 for end, nxt in zip(ends, card.segments[1:], strict=False))
        assert abs(card.segments[0].width - 100 * 1500 / 144384) < 0.01


def test_smaller_processes_share_a_segment() -> None:
    (card,) = gpus(status_view(full(gpus=1)))
    assert len(card.segments) == MOST_SEGMENTS + 2
    assert [each.name for each in card.segments[-2:]] == ["42 more", "1 MPS server"]


def test_a_process_on_two_gpus_has_one_colour() -> None:
    hues = {
        (each.process.pid, each.hue)
        for card in gpus(status_view(busy()))
        for each in card.segments
        if each.process is not None and each.part is Part.CLIENT
    }
    assert len(hues) == len({pid for pid, _ in hues}) == 3


def test_shows_memory_without_a_process() -> None:
    reading = replace(gpu_reading({600: 100}, at=AT + 1), memory_used_bytes=1000 << 20)
    (card,) = gpus(status_view(status_input(reduced(reading, start=idle()).node)))
    assert card.segments[-1].name == "driver"
    assert card.segments[-1].amount == "834 MiB"


def test_the_memory_of_a_gpu_in_mig_mode_is_that_of_its_instances() -> None:
    whole, first, second = gpus(status_view(status_input(mig())))
    assert (whole.filled, whole.free, whole.segments) == ("memory: see its MIG instances", "", ())
    assert [each.amount for each in first.segments][:2] == ["2564 MiB", "1540 MiB"]
    assert second.known


def test_an_unreadable_gpu_has_no_bar_and_is_not_idle() -> None:
    lost = reduced(GpuReading(at=AT + 1, gpu=GPU, problem=failure("GPU is lost")), start=idle()).node
    (card,) = gpus(status_view(status_input(lost)))
    assert (card.known, card.segments, card.sharing, card.problem) == (
        False,
        (),
        "cannot be read",
        "NVML: GPU is lost. Check the driver with nvidia-smi",
    )
    assert card.filled == "memory unknown"


def test_a_gpu_without_processes_is_idle() -> None:
    (card,) = gpus(status_view(status_input(reduced(gpu_reading(server=None, at=AT + 1), start=no_daemon().node).node)))
    assert (card.known, card.segments, card.sharing) == (True, (), "idle")


def test_shows_sharing_in_sentences_and_for_each_process() -> None:
    first, second = gpus(status_view(attributed()))
    assert [each.used for each in first.segments] == ["0.4 ± 0.2 %", "48.0 ± 1.2 %", ""]
    assert "room for 1 more client like these, the smallest of: 1 by SM time" in first.shared[1]
    assert first.shared[-1].startswith("memory bandwidth: 91 % is used")
    assert [each.used for each in second.segments if each.part is Part.BYPASSING] == ["30.0 ± 1.0 %"]


def test_shows_slowed_clients() -> None:
    cards = gpus(status_view(status_input(slowed())))
    assert [text.split(";")[0] for card in cards for text in card.shared if text.startswith("slowed down")] == [
        "slowed down: PID 600 (train.py) is 4.9 times slower than alone",
        "slowed down: PID 602 (eval.py) is at least 4.9 times slower than alone",
    ]


def test_no_sharing_without_clients() -> None:
    (card,) = gpus(status_view(status_input(idle())))
    assert card.shared == ()
