"""The image is built from existing files, has no compiler, and runs as an ordinary user by default."""

import fnmatch
import json
import re
from pathlib import Path

from exporter import __version__

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "deploy" / "Containerfile").read_text()


def instructions() -> list[list[str]]:
    """Return the instructions of each stage in order, each with its arguments."""
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE))
    stages: list[list[str]] = [[]]
    for line in filter(None, map(str.strip, joined.splitlines())):
        if line.startswith("FROM "):
            stages.append([])
        stages[-1].append(line)
    return stages[1:]


def arguments_of(word: str, stage: list[str]) -> list[str]:
    return [line.removeprefix(f"{word} ") for line in stage if line.startswith(f"{word} ")]


def test_copied_files_exist_and_reach_the_build() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    reaching = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    assert "*" in ignored
    for line in arguments_of("COPY", instructions()[0]):
        *sources, _ = line.split()
        for source in sources:
            assert (ROOT / source).exists()
            assert any(fnmatch.fnmatch(source, each) for each in reaching), source


def test_all_sources_of_the_wheel_are_copied() -> None:
    copied = {source for line in arguments_of("COPY", instructions()[0]) for source in line.split()[:-1]}
    project = (ROOT / "pyproject.toml").read_text()
    shared = re.findall(r'^"(\S+)" = "share/', project, re.MULTILINE)
    assert shared
    assert {"pyproject.toml", "README.md", "LICENSE", "exporter", *shared} <= copied


def test_runs_nothing_in_the_last_stage_and_no_shell_in_any() -> None:
    build, final = instructions()
    assert arguments_of("RUN", final) == []
    assert all(isinstance(json.loads(command), list) for command in arguments_of("RUN", build))
    assert arguments_of("COPY", final) == ["--from=build /opt/cuda-mps-exporter /opt/cuda-mps-exporter"]


def test_starts_the_program_as_an_ordinary_user() -> None:
    _, final = instructions()
    assert [json.loads(each) for each in arguments_of("ENTRYPOINT", final)] == [["cuda-mps-exporter"]]
    assert [json.loads(each) for each in arguments_of("CMD", final)] == [["serve"]]
    (user,) = arguments_of("USER", final)
    assert all(int(each) > 0 for each in user.split(":"))


def test_builds_on_the_machine_of_the_builder_for_any_architecture() -> None:
    """No emulator is needed: only the first stage runs commands, and it installs wheels of the image's architecture."""
    build, final = instructions()
    assert build[0].split()[1] == "--platform=$BUILDPLATFORM"
    assert build[-2] == "ARG TARGETARCH", "the steps above it are run once for all architectures"
    assert arguments_of("ARG", build) == ["TARGETARCH"]
    assert "--platform" not in final[0]


def test_has_the_version_of_the_package() -> None:
    (labels,) = arguments_of("LABEL", instructions()[1])
    assert f'org.opencontainers.image.version="{__version__}"' in labels
