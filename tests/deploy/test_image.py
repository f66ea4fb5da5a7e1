"""The image is built of what is there, has no compiler, and runs as nobody unless it is told otherwise."""

import fnmatch
import json
import re
from pathlib import Path

from exporter import __version__

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "deploy" / "Containerfile").read_text()


def instructions() -> list[list[str]]:
    """Each stage's, in order; a word, and what it is told."""
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE))
    stages: list[list[str]] = [[]]
    for line in filter(None, map(str.strip, joined.splitlines())):
        if line.startswith("FROM "):
            stages.append([])
        stages[-1].append(line)
    return stages[1:]


def told(word: str, stage: list[str]) -> list[str]:
    return [line.removeprefix(f"{word} ") for line in stage if line.startswith(f"{word} ")]


def test_what_is_copied_is_there_and_reaches_the_build() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    reaching = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    assert "*" in ignored
    for line in told("COPY", instructions()[0]):
        *sources, _ = line.split()
        for source in sources:
            assert (ROOT / source).exists()
            assert any(fnmatch.fnmatch(source, each) for each in reaching), source


def test_all_that_the_wheel_is_built_of_is_copied() -> None:
    copied = {source for line in told("COPY", instructions()[0]) for source in line.split()[:-1]}
    project = (ROOT / "pyproject.toml").read_text()
    shared = re.findall(r'^"(\S+)" = "share/', project, re.MULTILINE)
    assert shared
    assert {"pyproject.toml", "README.md", "LICENSE", "exporter", *shared} <= copied


def test_nothing_is_run_in_the_last_stage_and_no_shell_anywhere() -> None:
    build, final = instructions()
    assert told("RUN", final) == []
    assert all(isinstance(json.loads(command), list) for command in told("RUN", build))
    assert told("COPY", final) == ["--from=build /opt/cuda-mps-exporter /opt/cuda-mps-exporter"]


def test_it_runs_the_program_itself_as_nobody() -> None:
    _, final = instructions()
    assert [json.loads(each) for each in told("ENTRYPOINT", final)] == [["cuda-mps-exporter"]]
    assert [json.loads(each) for each in told("CMD", final)] == [["serve"]]
    (user,) = told("USER", final)
    assert all(int(each) > 0 for each in user.split(":"))


def test_it_is_of_this_version() -> None:
    (labels,) = told("LABEL", instructions()[1])
    assert f'org.opencontainers.image.version="{__version__}"' in labels
