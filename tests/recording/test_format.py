"""Recordings on disk: what is written can be read, what is old or new is read too, what is no recording is refused."""

import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.cli import main
from exporter.errors import RecordingError
from exporter.model.launches import ProcessWork, WorkReading
from exporter.model.observation import (
    ControlReply,
    DaemonProcess,
    GpuProcess,
    GpuReading,
    KernelRecord,
    LogFile,
    Observation,
    SourceReading,
)
from exporter.model.reason import Reason, ReasonCode
from exporter.model.sharing import GpuUse
from exporter.recording import (
    _KINDS,
    Header,
    RecordedDaemon,
    RecordedGpu,
    Recording,
    write_header,
    write_observation,
)
from tests.builders import AT, DAEMON, GPU, OTHER_GPU, scenario
from tests.store.values import whole

HEADER_LINE = '{"recording": 2}\n'
HEADER = Header(
    daemons=(
        RecordedDaemon(name="training", pipe_directory="/run/a", log_directory="/log/a"),
        RecordedDaemon(name="other", pipe_directory="/run/b", log_directory="/log/b", expected=False),
    ),
    gpus=(RecordedGpu(index=3, uuid=OTHER_GPU, name="NVIDIA H200"),),
    facts={"driver": "580.159.04"},
)


anything = st.one_of(*map(whole, sorted(_KINDS.values(), key=lambda kind: kind.__name__)))


def written(*observation: Observation, header: Header = HEADER) -> str:
    file = io.StringIO()
    write_header(file, header)
    for each in observation:
        write_observation(file, each)
    return file.getvalue()


def read(text: str) -> list[Observation]:
    return list(Recording(io.StringIO(text)).observations())


class TestRoundTrip:
    """`record` writes what `replay` reads."""

    @given(st.lists(anything, max_size=5))
    @settings(max_examples=100)
    def test_reads_observations_as_they_were_written(self, observation: list[Observation]) -> None:
        """One ASCII line each, whatever text is in it."""
        text = written(*observation)
        assert read(text) == observation
        assert text.isascii()
        assert text.count("\n") == len(observation) + 1

    def test_distinguishes_missing_empty_and_zero(self, subtests: pytest.Subtests) -> None:
        """No problem, no process, no answer: these too must come back."""
        for observation in [
            LogFile(at=AT, daemon=DAEMON, file="control.log", problem=None),
            LogFile(at=AT, daemon=DAEMON, file="control.log", problem=None, size=0),
            DaemonProcess(at=AT, daemon=DAEMON, pid=None),
            ControlReply(at=AT, daemon=DAEMON, command="get_server_list", exit_code=None),
            GpuReading(at=AT, gpu=GPU),
            GpuReading(at=AT, gpu=GPU, compute_processes=(), mps_processes=None),
            GpuReading(at=AT, gpu=GPU, mps_processes=(GpuProcess(pid=1),)),
            SourceReading(at=AT, name="nvml", seconds=0.0),
            GpuUse(at=AT, gpu=GPU, seconds=1.0, sm_utilization=0.0),
            WorkReading(at=AT, boot_ns=1, seconds=0.0),
            WorkReading(at=AT, boot_ns=1, seconds=1.0, processes=(ProcessWork(pid=1, first_ns=1),), watched=(1,)),
        ]:
            with subtests.test(observation=observation):
                assert read(written(observation)) == [observation]

    def test_reads_the_header_as_it_was_written(self) -> None:
        """Daemons, GPUs, and further facts as they were."""
        assert Recording(io.StringIO(written())).header == HEADER

    def test_the_node_has_the_daemons_of_the_header(self) -> None:
        """So that replay evaluates a daemon by what was expected of it then."""
        daemons = HEADER.node().daemons
        assert {name: daemon.declared.expected for name, daemon in daemons.items()} == {
            "training": True,
            "other": False,
        }
        assert daemons["other"].pipe_directory == "/run/b"


def test_records_only_numbers_of_work() -> None:
    """A recording is given away: who launched what stands in nothing but PIDs."""
    busy = ProcessWork(pid=600, first_ns=1, kernels=7)
    part = ProcessWork(pid=600, first_ns=1, device=1, kernels=7)
    observation = WorkReading(at=AT, boot_ns=1, seconds=1.0, processes=(busy,), on_devices=(part,), watched=(600,))
    assert read(written(observation)) == [observation]
    line = json.loads(written(observation).splitlines()[-1])
    (output,), (output_of_device,) = line.pop("processes"), line.pop("on_devices")
    assert (line.pop("source"), line.pop("watched")) == ("work", [600])
    assert {type(value) for value in line.values()} == {int, float}
    assert {type(value) for each in (output, output_of_device) for value in each.values()} == {int}


class TestOtherVersions:
    """Yesterday's recordings, and tomorrow's."""

    def test_refuses_format_1(self) -> None:
        with pytest.raises(RecordingError, match="has format 1; this version reads format 2"):
            Recording(io.StringIO('{"recording": 1}\n'))

    def test_refuses_a_recording_without_a_header(self) -> None:
        with pytest.raises(RecordingError, match="line 1 is not a recording's header"):
            read('{"at": 2, "source": "kernel", "record": "x"}\n')

    def test_ignores_unknown_sources_and_keys(self) -> None:
        """A later version can have more kinds and keys."""
        lines = (
            '{"at": 1, "source": "telepathy", "thought": 7}\n'
            '{"at": 2, "source": "kernel", "record": "x", "mood": "good"}\n'
            "\n"
            '{"at": 3}\n'
        )
        assert read(written() + lines) == [KernelRecord(at=2.0, record="x")]

    def test_ignores_the_shares_of_earlier_versions(self) -> None:
        shares = '{"at": 2, "source": "pod_resources", "devices": [{"pod": "a"}], "allocatable": {"x/gpu": ["0"]}}\n'
        failed = '{"at": 3, "source": "source", "name": "pod_resources", "seconds": 1, "problem": {"code": "%s"}}'
        (found,) = read(f"{HEADER_LINE}{shares}{failed % 'package_missing'}\n")
        assert isinstance(found, SourceReading)
        assert (found.at, found.problem) == (3, Reason(ReasonCode.UNSPECIFIED))


GOOD_LINE = '{"at": 1, "source": "kernel", "record": "x"}\n'


class TestRefusals:
    """Through the command line: what, where, and exit code 1."""

    def test_ignores_an_incomplete_last_line(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A recorder was killed in mid-write; what it wrote before still counts."""
        text = scenario("control_killed").text
        path = tmp_path / "torn.jsonl"
        path.write_text(text[:-20])
        assert main(["replay", "--events", str(path)]) == 0
        output = capsys.readouterr()
        assert json.loads(output.out.splitlines()[-1])["event"] == "client_disconnected"
        assert output.err == ""

    @pytest.mark.parametrize(
        ("text", "line", "problem"),
        [
            (HEADER_LINE + GOOD_LINE + "not json\n" + GOOD_LINE, 3, "is not JSON"),
            (HEADER_LINE + '{"at": 1, "source": "ker\n', 2, "is not JSON"),
            (HEADER_LINE + "[1, 2]\n", 2, "is not a JSON object"),
            (HEADER_LINE + "7", 2, "is not a JSON object"),
            (HEADER_LINE + '{"source": "kernel", "record": "x"}\n', 2, "'at' is missing"),
            (HEADER_LINE + '{"at": "now", "source": "kernel", "record": "x"}\n', 2, "'at' is 'now'"),
            (HEADER_LINE + '{"at": 1, "source": "log", "daemon": "d", "file": "f", "line": 7}\n', 2, "'line' is 7"),
            (HEADER_LINE + '{"at": 1, "source": "process_exit", "pid": "1", "start_ticks": 1}\n', 2, "'pid' is '1'"),
            (HEADER_LINE + '{"at": 1, "source": "process_exit", "pid": true, "start_ticks": 1}\n', 2, "'pid' is True"),
            (
                HEADER_LINE + '{"at": 1, "source": "nvml", "gpu": "g", "mps_processes": [{"used_bytes": 1}]}\n',
                2,
                "'pid' is missing",
            ),
            ('{"recording": 3}\n', 1, "has format 3; this version reads format 2: read the file"),
            ('{"recording": "one"}\n', 1, "has format 'one'"),
            ('{"recording": 2, "daemons": [{"name": "x"}]}\n', 1, "missing or malformed part"),
        ],
    )
    def test_reports_a_malformed_line_with_file_and_line(
        self, text: str, line: int, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The person who asked can go there and look."""
        path = tmp_path / "bad.jsonl"
        path.write_text(text)
        assert main(["replay", "--events", str(path)]) == 1
        complaint = capsys.readouterr().err
        assert complaint.startswith(f"cuda-mps-exporter: {path}: line {line} ")
        assert problem in complaint
        assert "Traceback" not in complaint

    def test_reports_a_missing_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """With the system's reason."""
        path = tmp_path / "none.jsonl"
        assert main(["replay", "--metrics", str(path)]) == 1
        assert capsys.readouterr().err == f"cuda-mps-exporter: {path}: No such file or directory\n"

    def test_rejects_a_directory(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Nor may it end in a traceback."""
        assert main(["replay", "--metrics", str(tmp_path)]) == 1
        assert capsys.readouterr().err == f"cuda-mps-exporter: {tmp_path}: Is a directory\n"

    def test_rejects_binary_data(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A gzipped recording, say."""
        path = tmp_path / "zipped.jsonl"
        path.write_bytes(b"\x1f\x8b\x08\x00\xff\xfe\n\x00\n")
        assert main(["replay", "--metrics", str(path)]) == 1
        assert f"{path}: line 1 is not JSON" in capsys.readouterr().err

    @pytest.mark.parametrize("text", ["", "\n\n", '{"record'])
    def test_rejects_an_empty_file(self, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "empty.jsonl"
        path.write_text(text)
        assert main(["replay", "--events", str(path)]) == 1
        output = capsys.readouterr()
        assert output.out == ""
        assert output.err == f"cuda-mps-exporter: {path}: line 1 is missing or incomplete; record again\n"

    def test_a_recorder_that_was_stopped_at_once_has_no_events(self, tmp_path: Path) -> None:
        path = tmp_path / "short.jsonl"
        path.write_text(HEADER_LINE)
        assert main(["replay", "--events", str(path)]) == 0
