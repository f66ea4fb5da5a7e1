"""delete_pod deletes exactly the pod that ran the daemon, and reports why it could not."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from exporter.actions.steps import delete_pod
from exporter.collectors.pods import ask_pod
from exporter.model.action import DeletePod
from exporter.model.reason import Reason, ReasonCode
from tests.eventually import PATIENCE_SECONDS
from tests.kubernetes_api import ApiServer

NAMESPACE, NAME, UID = "gpu-operator", "mps-control-daemon-x7k2p", "6f9a2c1e-1b5d-4c57-9b0e-3d0f5a7c2b11"
STEP = DeletePod(namespace=NAMESPACE, name=NAME, uid=UID)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer(tmp_path, pods={(NAMESPACE, NAME): UID}, permitted=frozenset({NAMESPACE})) as server:
        yield server


def delete(api: ApiServer, step: DeletePod = STEP) -> Reason | None:
    return delete_pod(step, ask=partial(ask_pod, account=api.account, environment=api.environment))


def test_deletes_the_pod(api: ApiServer) -> None:
    assert delete(api) is None
    assert api.deleted == [(NAMESPACE, NAME)]


def test_a_pod_that_is_gone_is_no_problem(api: ApiServer) -> None:
    assert delete(api) is None
    assert delete(api) is None
    assert len(api.deleted) == 1


def test_leaves_another_pod_with_the_same_name_alone(api: ApiServer) -> None:
    api.pods[NAMESPACE, NAME] = UID.replace("6", "7")
    assert delete(api) is None
    assert api.deleted == []


@pytest.mark.parametrize("cause", ["namespace", "token"])
def test_reports_a_missing_permission(api: ApiServer, cause: str) -> None:
    if cause == "token":
        (api.account / "token").write_text("another")
    else:
        api.permitted = frozenset()
    assert delete(api) == Reason(ReasonCode.POD_DELETION_FORBIDDEN, pod=f"{NAMESPACE}/{NAME}")


@pytest.mark.parametrize(
    ("answer", "text"),
    [(b'{"message": "no\\nquorum"}', "no�quorum"), (b"[" * 60_000, None), (b'{"message": 7}', None), (b"", None)],
)
def test_reports_an_error_of_the_api_server(api: ApiServer, answer: bytes, text: str | None) -> None:
    api.answer = 500, answer
    pod = f"{NAMESPACE}/{NAME}"
    assert delete(api) == Reason(ReasonCode.POD_NOT_DELETED, pod=pod, state="HTTP 500", text=text)


def test_does_not_trust_another_authority(api: ApiServer, tmp_path: Path) -> None:
    with ApiServer(tmp_path / "other") as other:
        found = delete_pod(STEP, ask=partial(ask_pod, account=other.account, environment=api.environment))
    assert found is not None
    assert found.code is ReasonCode.API_SERVER_UNREACHABLE
    assert api.deleted == []


def test_reports_that_no_api_server_answers(api: ApiServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    environment = {**api.environment, "KUBERNETES_SERVICE_PORT": port}
    found = delete_pod(STEP, ask=partial(ask_pod, account=api.account, environment=environment))
    assert found is not None
    assert found.code is ReasonCode.API_SERVER_UNREACHABLE


@pytest.mark.parametrize(
    "environment", [{}, {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "tcp://"}]
)
def test_outside_a_pod_no_api_server_is_known(api: ApiServer, environment: dict[str, str]) -> None:
    ask = partial(ask_pod, account=api.account, environment=environment)
    assert delete_pod(STEP, ask=ask) == Reason(ReasonCode.API_SERVER_UNKNOWN)


SLOW = ("handshake", "headers", "body", "continue")


@pytest.mark.parametrize("part", SLOW)
def test_a_request_has_one_deadline_however_slow_the_answer_is(
    api: ApiServer, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte comes in time."""
    monkeypatch.setattr("exporter.collectors.pods.REQUEST_SECONDS", 0.3)
    stop = threading.Event()

    def answer(accepted: socket.socket) -> None:
        with contextlib.suppress(OSError), accepted:
            if part == "handshake":
                drip(accepted, b"\x16\x03\x03\x40\x00" + bytes(1 << 14))
            with api.context.wrap_socket(accepted, server_side=True) as connection:
                connection.recv(1 << 16)
                if part == "continue":
                    while not stop.is_set():
                        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                if part == "body":
                    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                drip(connection, b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 90)

    def drip(connection: socket.socket, text: bytes) -> None:
        for byte in text:
            connection.sendall(bytes([byte]))
            if stop.wait(0.02):
                return

    with socket.create_server(("127.0.0.1", 0)) as server:
        environment = {**api.environment, "KUBERNETES_SERVICE_PORT": str(server.getsockname()[1])}
        results = list[Reason | None]()
        ask = partial(ask_pod, account=api.account, environment=environment)
        deletion = threading.Thread(target=lambda: results.append(delete_pod(STEP, ask=ask)), daemon=True)
        deletion.start()
        answering = threading.Thread(target=answer, args=(server.accept()[0],), daemon=True)
        answering.start()
        deletion.join(PATIENCE_SECONDS)
        stop.set()
        answering.join()
    (found,) = results
    assert found is not None
    assert found.code is ReasonCode.API_SERVER_UNREACHABLE
    assert "timed out" in (found.parameters["text"] or "")


def test_names_lead_to_no_other_path(api: ApiServer) -> None:
    """The names come from directories of the node."""
    delete(api, DeletePod(namespace="../kube-system", name="x/../../nodes", uid=UID))
    assert api.deleted == []
