"""What to do about each alert is told to whoever asks, and nothing else is that lies near it."""

import tomllib
from pathlib import Path

import pytest

from exporter.web import Request, Runbooks
from exporter.web.access import Visitor
from tests.web.serving import Web

ROOT = Path(__file__).parents[2]
PAGES = sorted(page.name for page in (ROOT / "alerts" / "runbooks").iterdir())
FAR = Visitor(peer="10.0.0.1", host="node1:10677", proxied=True)


def test_each_page_is_served_as_it_is_installed(web: Web) -> None:
    for name in PAGES:
        answer = web.get(f"/runbooks/{name}")
        assert (answer.status, answer.headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
        assert answer.body == (ROOT / "alerts" / "runbooks" / name).read_bytes()


def test_whoever_was_woken_reads_it_from_anywhere(web: Web) -> None:
    answer = web.site().answer(Request(path=f"/runbooks/{PAGES[0]}", visitor=FAR))
    assert answer.status == 200


def test_all_are_listed(web: Web) -> None:
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
def test_what_is_no_runbook_is_not_found(web: Web, name: str) -> None:
    answer = web.get(f"/runbooks/{name}")
    assert answer.status == 404
    assert b"# " not in answer.body


def test_a_name_that_there_is_not_is_answered_with_those_that_there_are(web: Web) -> None:
    told = web.get("/runbooks/CudaMpsNothing.md").body.decode().splitlines()
    assert told == ["no such runbook; there are:", *(f"/runbooks/{name}" for name in PAGES)]


def test_only_pages_of_the_directory_are_served(tmp_path: Path) -> None:
    (tmp_path / "One.md").write_text("# One\n")
    (tmp_path / "notes.txt").write_text("no page")
    route = Runbooks(tmp_path).routes["/runbooks/*"]
    assert route.respond(Request(path="/runbooks/One.md?x=1")).body == b"# One\n"
    assert route.respond(Request(path="/runbooks/notes.txt")).status == 404


def test_they_come_with_the_package_from_a_clone_and_from_a_source_distribution() -> None:
    """An editable install follows the link, which a source distribution does not have: so they are named."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"alerts/runbooks": "exporter/runbooks"}
    assert (ROOT / "exporter" / "runbooks").resolve() == ROOT / "alerts" / "runbooks"
