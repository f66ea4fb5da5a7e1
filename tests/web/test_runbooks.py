"""Runbooks: all of them are served, and no other file."""

import tomllib
from pathlib import Path

import pytest

from exporter.web.handler import Request
from exporter.web.pages import runbook_routes
from tests.web.serving import Web

ROOT = Path(__file__).parents[2]
PAGES = sorted(page.name for page in (ROOT / "alerts" / "runbooks").iterdir())


def test_serves_each_runbook(web: Web) -> None:
    for name in PAGES:
        answer = web.get(f"/runbooks/{name}")
        assert (answer.status, answer.headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
        assert answer.body == (ROOT / "alerts" / "runbooks" / name).read_bytes()


def test_serves_runbooks_to_all_visitors(web: Web) -> None:
    answer = web.site().answer(Request(path=f"/runbooks/{PAGES[0]}", peer="10.0.0.1", proxied=True))
    assert answer.status == 200


def test_lists_all_runbooks(web: Web) -> None:
    assert web.get("/runbooks").body.decode().splitlines() == [f"/runbooks/{name}" for name in PAGES]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "CudaMpsNothing.md",
        "CudaMpsFault",
        "cudampsfault.md",
        "..",
        "..%2f..%2fREADME.md",
        "%2e%2e/README.md",
        "../../README.md",
        "%00",
        "CudaMpsFault.md%00",
    ],
)
def test_answers_404_for_an_unknown_runbook(web: Web, name: str) -> None:
    answer = web.get(f"/runbooks/{name}")
    assert answer.status == 404
    assert b"# " not in answer.body


def test_lists_the_runbooks_for_an_unknown_name(web: Web) -> None:
    lines = web.get("/runbooks/CudaMpsNothing.md").body.decode().splitlines()
    assert lines == ["unknown runbook; the runbooks are:", *(f"/runbooks/{name}" for name in PAGES)]


def test_serves_only_markdown_files_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "One.md").write_text("# One\n")
    (tmp_path / "notes.txt").write_text("no page")
    route = runbook_routes(tmp_path)["/runbooks/*"]
    assert route.respond(Request(path="/runbooks/One.md?x=1")).body == b"# One\n"
    assert route.respond(Request(path="/runbooks/notes.txt")).status == 404


def test_the_package_contains_the_runbooks() -> None:
    """An editable install uses the link, or the copies in a source distribution. The wheel includes the files."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"alerts/runbooks": "exporter/runbooks"}
    assert _texts(ROOT / "exporter" / "runbooks") == _texts(ROOT / "alerts" / "runbooks")


def _texts(directory: Path) -> dict[str, str]:
    return {each.name: each.read_text() for each in directory.iterdir()}
