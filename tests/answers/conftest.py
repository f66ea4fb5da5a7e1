"""The report, and a stand-in for Prometheus."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dashboards.report import main
from exporter.web.pages import Answer, Request
from tests.ports import LOCALHOST
from tests.web.certificates import Authority
from tests.web.serving import serving

Run = Callable[..., tuple[int, str, str]]
Serve = Callable[[Answer | Callable[[Request], Answer]], str]


def one_line(problem: str, start: str) -> str:
    """Return a problem that is one line of printable text."""
    assert problem.startswith(start)
    assert problem.endswith("\n")
    assert problem[:-1].isprintable()
    return problem


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory without credentials."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs the report, and returns its exit code, stdout and stderr."""

    def ran(*arguments: str) -> tuple[int, str, str]:
        try:
            code = main(arguments)
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        output = capsys.readouterr()
        return code, output.out, output.err

    return ran


@pytest.fixture
def answers() -> Iterator[Serve]:
    """Return a function that lets a web server answer so, and returns its URL."""
    with serving() as web:

        def serve(page: Answer | Callable[[Request], Answer]) -> str:
            web.replaceable.answer = page if callable(page) else lambda _: page  # type: ignore[method-assign]
            web.replaceable.site = None  # None of its answers is ready.
            return f"http://{LOCALHOST}:{web.server.port}"

        yield serve


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority that signs certificates."""
    return Authority(tmp_path_factory.mktemp("authority"))
