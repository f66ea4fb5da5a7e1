"""Masked recordings: no name remains, and `replay` prints the same up to the names."""

import ast
import gzip
import inspect
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from exporter.model.kernels import ClientKernels, KernelName, KernelReading, KernelUse, LaunchedKernel
from exporter.model.observation import PodFound
from exporter.parse import cgroup, control_reply, kernel_log, log_message, protocol3
from exporter.recording import WORDS, Header, Mask, Recording, write_header, write_observation
from tests.baseline.replayed import RECORDINGS, name_of, replay
from tests.builders import GPU, OTHER_GPU

MASK = Mask(b"the same key in all of these tests")
KNOWN = frozenset(WORDS.split())
LETTERS = re.compile(r"[^\W\d_]+")
SAMPLED = RECORDINGS[::20]
"""All of them would take long, and have few texts that are not in these."""


def written(recording: Path, directory: Path, mask: Mask | None = MASK) -> Path:
    file = directory / f"{'masked' if mask else 'plain'}.jsonl.gz"
    with gzip.open(recording, "rt") as stream, gzip.open(file, "wt") as out:
        whole = Recording(stream)
        write_header(out, whole.header, mask)
        for each in whole.observations():
            write_observation(out, each, mask)
    return file


def strings(value: Any) -> Iterator[str]:
    """Yield all strings in a JSON value, but not the names of fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from strings(each)


def replaced(value: Any, replace: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return replace(value)
    if isinstance(value, dict):
        return {key: replaced(each, replace) for key, each in value.items()}
    return [replaced(each, replace) for each in value] if isinstance(value, list) else value


def printed(recording: Path) -> Any:
    found = replay(recording)
    samples = [
        [*json.loads(key), value] for family in found["metrics"].values() for key, value in family["samples"].items()
    ]
    return {"events": found["events"], "samples": samples}


@pytest.mark.parametrize("recording", SAMPLED, ids=name_of)
def test_a_masked_recording_replays_to_the_same_with_other_names(recording: Path, tmp_path: Path) -> None:
    before, after = (printed(written(recording, tmp_path, mask)) for mask in (None, MASK))

    names = {MASK.text(each) for each in strings(before)}
    expected = replaced(before, MASK.text)
    # Words of the exporter itself are the same before and after.
    found = replaced(after, lambda each: each if each in names else MASK.text(each))
    assert found["events"] == expected["events"]
    assert sorted(map(str, found["samples"])) == sorted(map(str, expected["samples"]))


@pytest.mark.parametrize("recording", SAMPLED, ids=name_of)
def test_no_name_of_a_masked_recording_remains(recording: Path, tmp_path: Path) -> None:
    with gzip.open(recording, "rt") as stream:
        names = {
            name
            for line in stream
            for key, value in json.loads(line).items()
            if key in ("user", "command", "gpu", "uuid", "namespace", "uid", "unit", "pipe_directory", "daemon")
            for name in strings(value)
            if any(len(word) > 2 and word.casefold() not in KNOWN for word in LETTERS.findall(name))
        }
    with gzip.open(written(recording, tmp_path), "rt") as stream:
        text = stream.read()
    assert [name for name in names if name in text] == []


def test_a_word_that_is_not_known_is_replaced(subtests: pytest.Subtests) -> None:
    for text in [
        "[2026-11-22 03:37:19.416 Control   501] Cmd:start secret",
        "[2026-11-22 03:37:19.416 Server   501] secret",
        "4,360,27859548,-;NVRM: Xid (PCI:0000:07:00): 31, pid=123, name=secret, Ch 00000008, intr 00000000.",
        "4,360,27859548,-;Memory cgroup out of memory: Killed process 123 (secret) total-vm:9kB",
        "0::/system.slice/secret@secret.service",
        "PID,SERVER,DEVICE,MAWS NS,CMD\n1,secret,0,secret/default (0),secret --secret=1,secret\n",
        "/home/secret/.mps/nvidia-mps",
        "prefix_secret_3secret4",
        "geheimseĉret secret",
    ]:
        with subtests.test(text=text):
            masked = MASK.text(text)
            assert "secret" not in masked.casefold()
            assert [len(word) for word in LETTERS.findall(masked)] == [len(word) for word in LETTERS.findall(text)]
            assert re.sub(r"[^\W\d_]", "", masked) == re.sub(r"[^\W\d_]", "", text)


def test_keys_and_values_of_pod_labels_are_replaced() -> None:
    stream = io.StringIO()
    labels = {"team": "vision", "secret.example/owner": "alice"}
    write_observation(stream, PodFound(at=1.0, uid="1" * 32, name="n", namespace="s", labels=labels), MASK)
    masked = json.loads(stream.getvalue())["labels"]
    assert masked == {MASK.text(key): MASK.text(value) for key, value in labels.items()}
    assert not {"vision", "secret", "owner", "alice"} & {*LETTERS.findall(str(masked))}


def test_names_of_kernels_are_replaced() -> None:
    stream = io.StringIO()
    name = KernelName(raw="_ZN6secret5scaleEPf", short="secret::scale")
    kernel = LaunchedKernel(name=name, nodes=(name,), launches=3, stream=1, grid=(4, 2, 1))
    client = ClientKernels(pid=600, first_ns=1, last=(kernel,), most=(KernelUse(name=name, nodes=(name,), width=8),))
    reading = KernelReading(at=1.0, boot_ns=1, clients=(client,), at_fault=True)
    write_header(stream, Header(), MASK)
    write_observation(stream, reading, MASK)
    masked = KernelName(raw=MASK.text(name.raw), short=MASK.text(name.short))
    (replayed,) = Recording(io.StringIO(stream.getvalue())).observations()
    assert replayed == replace(
        reading,
        clients=(
            replace(
                client,
                last=(replace(kernel, name=masked, nodes=(masked,)),),
                most=(replace(client.most[0], name=masked, nodes=(masked,)),),
            ),
        ),
    )
    assert not {"secret", "scale"} & {*LETTERS.findall(stream.getvalue())}


def test_identifiers_keep_their_form_and_what_is_equal_in_them() -> None:
    pod, container = "eab5a334-93fe-48a8-b139-9e8079c1f163", "99f3a16e" * 8
    slice_ = f"kubepods-pod{pod.replace('-', '_')}.slice"
    path = MASK.text(f"0::/kubepods.slice/{slice_}/cri-containerd-{container}.scope\n")
    found = cgroup.parse_cgroup(path)
    assert (found.pod_uid, found.container) == (MASK.text(pod), MASK.text(container))
    assert found.pod_uid != pod
    assert MASK.text(OTHER_GPU) != MASK.text(GPU) != GPU
    assert MASK.text(GPU).startswith(MASK.text(GPU[:8]))
    assert MASK.text("a-long-name-of-a-process").startswith(MASK.text("a-long-name-of-"))


def test_another_key_gives_other_names() -> None:
    assert Mask(b"another").text("secret") != MASK.text("secret")


def test_the_words_of_all_texts_that_are_parsed_are_known(subtests: pytest.Subtests) -> None:
    """Otherwise a masked line would not be recognized."""
    shown = {kernel_log.RESET, kernel_log.REBOOT, *kernel_log.XidClass, *chain(*kernel_log.XIDS.values())}
    for module in [log_message, kernel_log, cgroup, control_reply, protocol3]:
        with subtests.test(module=module):
            tree = ast.parse(inspect.getsource(module))
            texts = {each.value.value for each in ast.walk(tree) if isinstance(each, ast.Expr) and is_text(each.value)}
            patterns = [each.value for each in ast.walk(tree) if is_text(each) and each.value not in texts | shown]
            unknown = {
                word.casefold()
                for pattern in patterns
                for word in LETTERS.findall(re.sub(r"\\[a-zA-Z]|\(\?P<\w+>|\[[^]]*\]|\(\?[a-z]+:?|ASCII", " ", pattern))
                if len(word) > 1
            } - KNOWN
            assert unknown <= {"abled"}, "en- or disabled"


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@pytest.mark.parametrize("step", ["batch", "extern", "interactive", "0+1", "extern stepmgr"])
def test_the_number_of_a_slurm_job_stays(step: str) -> None:
    path, title = "0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_0\n", f"slurmstepd: [4711.{step}]"
    masked = cgroup.parse_cgroup(MASK.text(path), MASK.text(title))
    assert masked == cgroup.parse_cgroup(path, title)
    assert masked.job_id == "4711"


@pytest.mark.parametrize(
    ("cgroup_file", "source", "manager", "job"),
    [
        ("0::/pbs_jobs.service/jobs/1234.3\n", None, "pbs", "1234[2]"),
        ("5:cpuset:/torque/1234[7].alpha\n", None, "torque", f"1234[7].{MASK.text('alpha')}"),
        (
            "0::/htcondor/condor_srv_alice_execute_slot1_1@alpha.example\n",
            "condor_starter\0-f\0-local-name\0slot_type_1\0-a\x0014.0\0-slot-name\0slot1_1\0alpha.example",
            "htcondor",
            "14.0",
        ),
        ("0::/user.slice/user-5.slice/user@5.service/imp-shell-0-fTE9HHdZvi3.service\n", "5", "flux", "fTE9HHdZvi3"),
        ("4:memory:/lsf/alpha/job.4711.1.2\n", None, "lsf", "4711"),
        ("0::/system.slice/sge-42.7.scope\n", None, "grid_engine", "42.7"),
        ("0::/system.slice/alpha.service\n", "/var/spool/alpha/active_jobs/1.2", "grid_engine", "1.2"),
    ],
)
def test_the_number_of_a_job_of_each_batch_system_stays(
    cgroup_file: str, source: str | None, manager: str, job: str
) -> None:
    text = MASK.text(cgroup_file)
    masked = cgroup.parse_cgroup(text, None if source is None else MASK.text(source))
    assert (masked.job_manager, masked.job_id) == (manager, job)
    assert not {"alpha", "alice"} & {*LETTERS.findall(text)}
