"""Runbooks: all of them are served, and no other file."""

import tomllib
from pathlib import Path

import pytest

from exporter.web.pages import Request
from tests.web.serving import Web

ROOT = Path(__file__).parents[2]
PAGES = sorted(page.name for page in (ROOT / "alerts" / "runbooks").iterdir())


def test_serves_and_lists_each_runbook_to_all_visitors(web: Web) -> None:
    site = web.site()
    for name in PAGES:
        answer = site.answer(Request(path=f"/runbooks/{name}", peer="10.0.0.1", proxied=True))
        assert (answer.status, answer.content_type) == (200, "text/plain; charset=utf-8")
        assert answer.body == (ROOT / "alerts" / "runbooks" / name).read_bytes()
    assert web.get("/runbooks").body.decode().splitlines() == [f"/runbooks/{name}" for name in PAGES]


def test_serves_html_to_a_browser(web: Web) -> None:
    page = web.get(f"/runbooks/{PAGES[0]}", Accept="text/html,application/xhtml+xml;q=0.9")
    listed = web.get("/runbooks", Accept="text/html")

    assert [each.headers["Content-Type"] for each in (page, listed)] == ["text/html; charset=utf-8"] * 2
    assert [each.headers["Vary"] for each in (page, listed, web.get("/runbooks"))] == ["Accept"] * 3
    assert page.headers["Content-Security-Policy"] == web.get("/").headers["Content-Security-Policy"]
    assert b"<h1>" in page.body
    assert all(f'<a href="/runbooks/{name}">'.encode() in listed.body for name in PAGES)


def test_answers_404_and_the_list_for_an_unknown_runbook(web: Web, subtests: pytest.Subtests) -> None:
    for name in ("CudaMpsNothing.md", "CudaMpsFault", "cudampsfault.md", "..", "..%2f..%2fREADME.md", "%00"):
        with subtests.test(name=name):
            answer = web.get(f"/runbooks/{name}")
            assert answer.status == 404
            listed = [f"/runbooks/{page}" for page in PAGES]
            assert answer.body.decode().splitlines() == ["unknown runbook; the runbooks are:", *listed]
    for name in ("%2e%2e/README.md", "../../README.md"):
        with subtests.test(name=name):
            assert web.get(f"/runbooks/{name}").status == 404


def test_serves_only_markdown_files_of_the_directory(web: Web, tmp_path: Path) -> None:
    (tmp_path / "One.md").write_text("# One\n")
    (tmp_path / "notes.txt").write_text("no page")
    site = web.site(runbooks=tmp_path)
    assert site.answer(Request(path="/runbooks/One.md?x=1")).body == b"# One\n"
    assert site.answer(Request(path="/runbooks/notes.txt")).status == 404


def test_the_package_contains_the_runbooks() -> None:
    """An editable install uses the link, or the copies in a source distribution. The wheel includes the files."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"alerts/runbooks": "exporter/runbooks"}
    assert _texts(ROOT / "exporter" / "runbooks") == _texts(ROOT / "alerts" / "runbooks")


def _texts(directory: Path) -> dict[str, str]:
    return {each.name: each.read_text() for each in directory.iterdir()}
