"""A failing accept() costs one attempt: the listener's thread goes on, waits, and logs the failure once."""

import errno
import http.client
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from exporter.metrics.catalogue import NodeCollector
from exporter.model.node import Node
from exporter.status_client import query_service
from exporter.view import View
from exporter.web.pages import plain
from exporter.web.server import LOG_EVERY, WAIT_SECONDS, AcceptFailures, ServiceSocket, WebServer
from tests.eventually import PATIENCE_SECONDS
from tests.ports import LOCALHOST
from tests.web.serving import ReplaceableSite


def failing(times: int, code: int, succeed: Callable[..., object]) -> Callable[..., object]:
    """Return an accept() that fails so many times, and then is the real one."""
    left = iter(range(times))

    def accept(*arguments: object) -> object:
        if next(left, None) is not None:
            raise OSError(code, os.strerror(code))
        return succeed(*arguments)

    return accept


class FailingSocket:
    """A listener whose accept() fails at first. A socket's own methods cannot be replaced."""

    def __init__(self, real: object, times: int, code: int) -> None:
        self._real = real
        self.accept = failing(times, code, real.accept)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


TRANSIENT = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ECONNABORTED, errno.EINTR]


@pytest.mark.parametrize("code", TRANSIENT)
def test_service_socket_answers_after_a_failed_accept(
    tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = AcceptFailures("service_socket")
    service = ServiceSocket(tmp_path, lambda _: {"status": lambda: {"table": "all well"}}, failures)
    listen = service._listen
    monkeypatch.setattr(service, "_listen", lambda: FailingSocket(listen(), 1, code))
    service.open()
    try:
        assert query_service(tmp_path, "status", PATIENCE_SECONDS) == {"table": "all well"}
        assert failures.total == 1
    finally:
        service.close()


def test_service_socket_answers_after_an_answer_that_cannot_be_encoded(tmp_path: Path) -> None:
    service = ServiceSocket(
        tmp_path, lambda _: {"broken": lambda: {"set": {1}}, "status": lambda: {"table": "all well"}}
    )
    service.open()
    try:
        with pytest.raises(Exception, match="does not answer"):
            query_service(tmp_path, "broken", PATIENCE_SECONDS)
        assert query_service(tmp_path, "status", PATIENCE_SECONDS) == {"table": "all well"}
    finally:
        service.close()


def test_service_continues_without_a_thread_for_its_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = ServiceSocket(tmp_path, lambda _: {})

    def refuse() -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(service._thread, "start", refuse)
    with capture_logs() as logs:
        service.open()
    service.close()

    assert [each["event"] for each in logs] == ["no_service_socket"]


def test_web_server_waits_after_a_failed_accept_and_answers(subtests: pytest.Subtests) -> None:
    """Without the wait, the loop would spin: the listener stays readable."""
    for code in TRANSIENT:
        with subtests.test(code=code):
            replaceable, failures = ReplaceableSite(), AcceptFailures("web")
            server = WebServer(replaceable, [(LOCALHOST, 0)], failures=failures, max_requests=40)
            server._listeners = [FailingSocket(each, 3, code) for each in server._listeners]  # type: ignore[misc]
            replaceable.answer = lambda _request: plain(http.HTTPStatus.OK, "ok")  # type: ignore[method-assign]
            server.open()
            try:
                connection = http.client.HTTPConnection(LOCALHOST, server.port, timeout=PATIENCE_SECONDS)
                connection.request("GET", "/")
                with connection.getresponse() as response:
                    assert response.status == 200
                connection.close()
                assert failures.total == 3
            finally:
                server.close()


def test_waits_after_persistent_failures_and_logs_few_of_them() -> None:
    failures, waited = AcceptFailures("web"), list[float]()
    with capture_logs() as logs:
        for _ in range(2 * LOG_EVERY):
            failures.failed(OSError(errno.EMFILE, "Too many open files"), waited.append)

    assert failures.total == 2 * LOG_EVERY
    assert len(logs) == 2
    assert waited == [WAIT_SECONDS] * 2 * LOG_EVERY


def test_neither_waits_nor_logs_after_a_client_aborts() -> None:
    failures, waited = AcceptFailures("web"), list[float]()
    with capture_logs() as logs:
        failures.failed(OSError(errno.ECONNABORTED, "aborted"), waited.append)

    assert (failures.total, waited, logs) == (1, [], [])


def test_counts_accept_failures_by_listener() -> None:
    view = View(Node(), accept_failures={"web": 3, "service_socket": 0})
    (family,) = [each for each in NodeCollector(view).collect() if each.name == "cuda_mps_exporter_accept_failures"]
    assert {sample.labels["listener"]: sample.value for sample in family.samples} == {"web": 3, "service_socket": 0}
