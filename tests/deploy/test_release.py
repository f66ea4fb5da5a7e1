"""The release workflow: only what the tree has, the same version and repository everywhere, and least permissions."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from exporter import __version__

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
OF_THE_REPOSITORY = re.compile(r"(?:^|[\s\"])(\.?[a-z][a-z_.-]*/[\w./-]+)")


def check() -> Any:
    """Load `.ci/check_release.py`."""
    spec = importlib.util.spec_from_file_location("check_release", ROOT / ".ci" / "check_release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def jobs(workflow: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(workflow.read_text())["jobs"]
    return found


def steps(workflow: Path) -> list[dict[str, Any]]:
    return [step for job in jobs(workflow).values() for step in job.get("steps", ())]


def test_the_repository_is_that_of_the_project_everywhere() -> None:
    assert list(check().inconsistent()) == []


def test_refuses_another_version_a_placeholder_and_an_unreleased_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tree without any of them passes."""
    module = check()
    paths = {"pyproject.toml", "SECURITY.md", *module.VERSIONS, *module.REPOSITORIES, *module.UNPUBLISHED}
    for path in paths:
        text = (ROOT / path).read_text().replace(module.PLACEHOLDER, "example.com")
        text = re.sub("no image is published", "an image is published", text, flags=re.IGNORECASE)
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text.replace(" (unreleased)", "", 1))
    monkeypatch.setattr(module, "ROOT", tmp_path)
    tag = f"v{__version__}"
    assert list(module.problems(tag)) == []
    assert len(list(module.problems("v99.0"))) == len(list(module.values_in(module.VERSIONS))) >= 5
    for path, before, after in (
        ("CHANGELOG.md", f"## {__version__}", f"## {__version__} (unreleased)"),
        ("SECURITY.md", "@example.com", "@example.invalid"),
        *((path, "an image is published", "No image is published") for path in module.UNPUBLISHED),
        ("deploy/packages/debian/control", "https://example.com", "https://elsewhere.example"),
    ):
        text = (tmp_path / path).read_text()
        assert before in text
        (tmp_path / path).write_text(text.replace(before, after, 1))
        (problem,) = module.problems(tag)
        assert path in problem
        (tmp_path / path).write_text(text)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_their_commit(workflow: Path) -> None:
    lines = re.findall(r"uses: ([^.\s].*)", workflow.read_text())
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", line)] == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_each_job_states_its_permissions_and_only_publishing_ones_can_write(workflow: Path) -> None:
    text = yaml.safe_load(workflow.read_text())
    assert text["permissions"] == {}
    writing = {name for name, job in jobs(workflow).items() if "write" in job["permissions"].values()}
    assert writing == ({"image-and-chart", "pypi", "release"} if workflow.stem == "release" else set())
    for step in steps(workflow):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_commands_name_files_of_the_repository_and_no_expression(workflow: Path) -> None:
    """An expression in a command would run text of a tag or a branch."""
    commands = [step["run"] for step in steps(workflow) if "run" in step]
    assert [each for each in commands if "${{" in each] == []
    named = {path for each in commands for path in OF_THE_REPOSITORY.findall(each)}
    own = {path for path in named if path.split("/")[0] in (".ci", "deploy")}
    assert own
    assert [path for path in own if not (ROOT / path).exists()] == []


def test_publishes_only_after_the_checks_the_tests_and_the_build() -> None:
    release = jobs(ROOT / ".github" / "workflows" / "release.yml")
    for name in ("image-and-chart", "pypi"):
        assert set(release[name]["needs"]) == {"test", "build"}
    assert set(release["release"]["needs"]) == {"image-and-chart", "pypi"}
    assert release["test"]["needs"] == release["build"]["needs"] == "check"
    (command,) = [step["run"] for step in release["check"]["steps"] if "run" in step]
    assert command == 'python3 .ci/check_release.py "$GITHUB_REF_NAME"'


def test_tests_each_python_of_the_classifiers() -> None:
    versions = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    ci = jobs(ROOT / ".github" / "workflows" / "ci.yml")
    assert ci["python"]["strategy"]["matrix"]["python"] == versions
