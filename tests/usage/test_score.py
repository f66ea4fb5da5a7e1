"""The scoring program, on an invented mix with a known result."""

import gzip
import json
from pathlib import Path

import pytest

from exporter.model.launches import GpuUse
from exporter.model.observation import Observation
from exporter.recording import Header, RecordedDaemon, write_header, write_observation
from lab.attribution.mix_truth import GPM_LAG_SECONDS
from lab.attribution.score import scored
from lab.attribution.score_tables import report
from lab.attribution.verdict import Score, errors, within
from tests.builders import AT, DAEMON, GPU, SERVER, clients, gpu_reading, servers
from tests.works import boot_ns, reading, work

SMS = 132
SECONDS = 64
HEAVY, LIGHT = 600, 601
# Of all SMs, and how long a kernel is that has half of them.
USED = {HEAVY: 0.3, LIGHT: 0.1}
KERNEL_NS = 1_000_000
WIDTH = SMS // 2


def seen() -> list[Observation]:
    """Return the observations of two steady clients and an exact GPU."""
    observations: list[Observation] = [servers(SERVER), clients(*USED), gpu_reading()]
    for second in range(SECONDS + 1):
        at = AT + second
        works = []
        for pid, used in USED.items():
            kernels = round(second * used * SMS * 1e9 / (KERNEL_NS * WIDTH))
            area = kernels * KERNEL_NS * WIDTH
            works.append(
                work(
                    pid,
                    kernels=kernels,
                    syncs=kernels,
                    spans=kernels,
                    flight_ns=kernels * KERNEL_NS,
                    area=area,
                    widths=kernels * WIDTH,
                    sure_area=area,
                    sure_widths=kernels * WIDTH,
                )
            )
        observations.append(reading(at, *works, sms=SMS))
        observations.append(GpuUse(at=at + GPM_LAG_SECONDS, gpu=GPU, seconds=1.0, sm_utilization=sum(USED.values())))
    return observations


def write(directory: Path, truth: dict[int, float]) -> Path:
    """Write the files of a run in which clients report this use."""
    with gzip.open(directory / "recording.jsonl.gz", "wt") as file:
        daemon = RecordedDaemon(pipe_directory=DAEMON, log_directory=f"{DAEMON}/log", name=DAEMON)
        write_header(file, Header(daemons=(daemon,)))
        for each in seen():
            write_observation(file, each)
    clients_truth = [
        {
            "pid": pid,
            "name": str(pid),
            "count_keys": ["boot_ns", "occupied_ns"],
            "counts": [[boot_ns(AT + second), second * used * SMS * 1e9] for second in range(SECONDS + 1)],
        }
        for pid, used in truth.items()
    ]
    moments = {"all_in": boot_ns(AT + 1.5), "measured": boot_ns(AT + SECONDS)}
    offset = boot_ns(AT) - round(AT * 1e9)
    with gzip.open(directory / "truth.json.gz", "wt") as file:
        json.dump({"mix": "even", "boot_minus_epoch_ns": offset, "moments": moments, "clients": clients_truth}, file)
    with gzip.open(directory / "rows.jsonl.gz", "wt") as file:
        for second in range(SECONDS):
            rows = [{"pid": HEAVY, "at_us": 0, "sm": 40, "memory": 0}]
            file.write(json.dumps({"at": AT + second + 0.5, "rows": rows}) + "\n")
    return directory


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Score:
    return scored(write(tmp_path_factory.mktemp("even"), USED))


def test_scores_a_minute_and_each_ten_seconds_of_it(judged: Score) -> None:
    assert [round(stretch.seconds) for stretch in judged.short] == [10] * 6
    assert [round(stretch.seconds) for stretch in judged.long] == [60]


def test_correct_shares_have_no_error(judged: Score) -> None:
    (minute,) = judged.long
    assert minute.coverage == pytest.approx(1, abs=0.01)
    assert minute.sm == pytest.approx(0.4)
    assert [verdict.true for verdict in minute.verdicts] == pytest.approx([0.75, 0.25])
    assert max(errors(judged.long)) < 0.5
    assert within(judged.short, 1) == 1


def test_other_methods_are_scored_by_the_same_truth(judged: Score) -> None:
    assert errors(judged.long, "equal") == pytest.approx([25, 25])
    assert errors(judged.long, "nvitop") == pytest.approx([25, 25])


def test_wrong_shares_have_their_error(tmp_path: Path) -> None:
    score = scored(write(tmp_path, {HEAVY: 0.1, LIGHT: 0.1}))
    assert errors(score.long) == pytest.approx([25, 25], abs=0.5)
    assert within(score.short, 2) == 0


def test_the_tables_have_each_mix_and_a_summary(judged: Score) -> None:
    text = report([judged], clients=True)
    assert "| even | 2 | 40.0 % |" in text
    assert "| 1 of 1 |" in text
    assert "| even | 600 | 75.0 % |" in text
