"""GPUs and their memory."""

import re
from dataclasses import replace

from exporter.model.observation import GpuReading
from exporter.page.page import Page
from exporter.page.tables import gpus
from exporter.report.node_status import status_document
from exporter.view import StatusInput
from tests.builders import AT, GPU, failure, gpu_reading, idle, limited, mig, reduced, slowed
from tests.page.html_reader import section
from tests.page.inputs import attributed, busy, no_daemon, status_input


def shown(data: StatusInput) -> str:
    return section(Page({}).node(data), "gpus").replace("\N{NO-BREAK SPACE}", " ")


def bars(data: StatusInput) -> list[dict[str, float]]:
    """Return the parts of each bar in percent."""
    found = re.findall('<svg class="bar"[^>]*>(.*?)</svg>', str(gpus(status_document(data)).rows))
    return [
        {kind: float(width) for kind, width in re.findall(r'class="(\w+)" .*?width="([\d.]+)%"', bar)} for bar in found
    ]


def test_memory_is_divided_into_clients_processes_without_mps_and_the_rest() -> None:
    first, second = bars(busy())
    assert "shared by MPS" in shown(busy())
    assert "MPS, and processes that bypass it" in shown(busy())
    assert "6.25 GiB of 141 GiB" in shown(busy())
    assert (second["client"], second["bypassing"]) == (3.7, 0.7)
    assert "bypassing" not in first
    assert all(sum(each.values()) < 100 for each in (first, second))


def test_shows_memory_without_a_process() -> None:
    reading = replace(gpu_reading({600: 100}, at=AT + 1), memory_used_bytes=1000 << 20)
    (bar,) = bars(status_input(reduced(reading, start=idle()).node))
    assert bar == {"rest": 0.7}


def test_the_memory_of_a_gpu_in_mig_mode_is_that_of_its_instances() -> None:
    assert len(bars(status_input(mig()))) == 2
    assert "see its MIG instances" in shown(status_input(mig()))


def test_memory_that_the_system_has_is_not_unknown() -> None:
    reading = replace(gpu_reading(at=AT + 1), unified_memory=True, memory_used_bytes=None, memory_total_bytes=None)
    data = status_input(reduced(reading, start=idle()).node)
    assert bars(data) == []
    assert "shared with the system" in shown(data)


def test_an_unreadable_gpu_has_no_bar_and_is_not_idle() -> None:
    lost = status_input(reduced(GpuReading(at=AT + 1, gpu=GPU, problem=failure("GPU is lost")), start=idle()).node)
    assert bars(lost) == []
    assert "cannot be read unknown" in shown(lost)
    assert "NVML: GPU is lost. Check the driver with nvidia-smi" in shown(lost)


def test_a_gpu_without_processes_is_idle() -> None:
    free = status_input(reduced(gpu_reading(server=None, at=AT + 1), start=no_daemon().node).node)
    assert bars(free) == [{}]
    assert "idle" in shown(free)


def test_shows_what_limits_reserve_beside_the_room() -> None:
    text = shown(attributed())
    assert "Room for Limits reserve" in text
    assert "1 more, by SM time" in text
    assert "at most 100 % of its threads, at most 3 % of its memory" in shown(status_input(limited()))


def test_shows_sharing_in_sentences_and_for_each_process() -> None:
    text = shown(attributed())
    clients = section(Page({}).node(attributed()), "clients").replace("\N{NO-BREAK SPACE}", " ")
    assert all(each in clients for each in ("48.0 ± 1.2 %", "under 1 %", "bypasses MPS 1 1 GiB 30.0"))
    assert "room for 1 more client like these, the smallest of: 1 by SM time" in text
    assert "memory bandwidth: 91 % is used" in text


def test_shows_slowed_clients() -> None:
    text = shown(status_input(slowed()))
    assert "slowed down: PID 600 (train.py) takes 4.9 times as long as on a quiet GPU" in text
    assert "slowed down: PID 602 (eval.py) takes at least 4.9 times as long as on a quiet GPU" in text


def test_no_sharing_without_clients() -> None:
    text = shown(status_input(idle()))
    assert "Room for" not in text.replace("Room is for", "")
    assert "How the clients" not in text
