"""Kernels of a client are shown to root and to its owner only, on every page and in every answer."""

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from exporter.model.incident import ClientDetails, Clues, Suspect
from exporter.model.values import plain
from exporter.report.document_parts import UNMAPPED_UID, seen_by
from exporter.report.node_status import document_of
from exporter.state.processes import client_id
from exporter.status_client import query_service
from exporter.web.api import EVENTS, INCIDENTS, STATUS
from exporter.web.pages import Request
from tests.another_user import become, run_as
from tests.builders import DAEMON, flight, split, with_incidents
from tests.clocks import HandClock
from tests.incidents.values import fault_kernels, launched
from tests.kernels import client, use, with_kernels
from tests.page.inputs import fault, status_input
from tests.service.running import Running
from tests.web.serving import Web, serving

ALICE, BOB, CAROL = 1001, 1002, 1003
SECRETS = {ALICE: "secret_of_alice", BOB: "secret_of_bob"}
"""The owners of the clients 600 and 601. Carol has none."""
VIEWERS = (0, ALICE, BOB, CAROL, UNMAPPED_UID, None)
AT_FAULT = tuple(fault_kernels(pid, launched(f"fault_{SECRETS[uid]}")) for pid, uid in ((600, ALICE), (601, BOB)))
OWNERS = {pid: ClientDetails(pid=pid, client=f"{pid}-1", uid=uid) for pid, uid in ((600, ALICE), (601, BOB))}
FAULTS = tuple(
    replace(
        each,
        affected=(600, 601),
        client_details=OWNERS,
        suspects=tuple(Suspect(client=owner, confidence=0.5, indications=()) for owner in OWNERS.values()),
        clues=Clues(kernels=AT_FAULT),
    )
    for each in fault().incidents
)
NODE = with_kernels(
    split(with_incidents(*FAULTS), {600: flight(0.4), 601: flight(0.1)}),
    client(600, use(SECRETS[ALICE]), use(None, nodes=(f"graph_{SECRETS[ALICE]}",))),
    client(601, use(SECRETS[BOB], raw=f"_Z{SECRETS[BOB]}")),
)
CLIENTS = {
    uid: f"/clients/{client_id(NODE.daemons[DAEMON].clients[pid], NODE.processes[pid])}"
    for uid, pid in ((ALICE, 600), (BOB, 601))
}
PATHS = (
    *("/", "/status", "/incidents/513-2", STATUS, INCIDENTS, f"{INCIDENTS}/513-2"),
    *("/incidents", "/events", f"{INCIDENTS}?clients=1", EVENTS, *CLIENTS.values()),
)
ONLY_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root can become another user")


def seen_secrets(text: str) -> set[int]:
    """Return the owners of the kernels that a text names."""
    return {uid for uid, name in SECRETS.items() if name in text}


def may_see(viewer: int | None) -> set[int]:
    return set(SECRETS) if viewer == 0 else set(SECRETS) & {viewer}


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as served:
        served.sight = status_input(NODE)
        served.history.add(NODE, ())
        served.show()
        yield served


# -- the rule ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """A part of a document with an owner."""

    kernels: object
    kernels_hidden: bool | None = None
    uid: int | None = None
    others: tuple["Entry", ...] = ()


@dataclass(frozen=True, slots=True)
class WithoutOwner:
    """A part without one."""

    kernels: object
    kernels_hidden: bool | None = None


@pytest.mark.parametrize(
    ("viewer", "uid", "shown"),
    [
        *((0, 0, True), (0, ALICE, True), (0, None, True), (0, UNMAPPED_UID, True)),
        *((ALICE, ALICE, True), (ALICE, BOB, False), (ALICE, 0, False), (ALICE, None, False)),
        *((None, None, False), (None, ALICE, False), (UNMAPPED_UID, UNMAPPED_UID, False)),
    ],
)
def test_root_and_the_owner_see_kernels(viewer: int | None, uid: int | None, shown: bool) -> None:
    one = Entry(kernels=("gemm",), uid=uid)

    assert seen_by(viewer, one) == (one if shown else replace(one, kernels=None, kernels_hidden=True))
    inner = Entry(kernels=(), uid=BOB, others=(one,))
    assert seen_by(viewer, (inner,)) == (replace(inner, others=(seen_by(viewer, one),)),)


def test_kernels_without_an_owner_are_for_root_only() -> None:
    entry = WithoutOwner(kernels=WithoutOwner(kernels=()))

    assert seen_by(0, entry) == entry
    assert seen_by(ALICE, entry) == WithoutOwner(kernels=None, kernels_hidden=True)


# -- pages and commands ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("viewer", VIEWERS)
def test_no_private_page_names_kernels_of_others(web: Web, viewer: int | None) -> None:
    site, found = web.site(), dict[str, set[int]]()
    for path, accept in product(PATHS, ("", "text/html")):
        request = Request(path=path, accept=accept, peer="127.0.0.1", host="localhost", find_user=lambda: viewer)
        answer = site.answer(request)
        assert answer.status == 200, path
        found[f"{path} {accept}"] = seen_secrets(answer.body.decode())

    assert all(secrets <= may_see(viewer) for secrets in found.values()), found
    for path, accept in product(PATHS[:6], ("", "text/html")):
        assert found[f"{path} {accept}"] == may_see(viewer), path
    for uid, path in CLIENTS.items():
        assert found[f"{path} "] == may_see(viewer) & {uid}, path


def test_a_page_that_was_rendered_for_another_visitor_is_not_shown(web: Web) -> None:
    site = web.site()
    for path in ("/", "/status", "/incidents/513-2"):
        for viewer in (0, BOB, None, ALICE, 0, CAROL, None):
            request = Request(path=path, peer="127.0.0.1", host="localhost", find_user=lambda viewer=viewer: viewer)
            assert seen_secrets(site.answer(request).body.decode()) == may_see(viewer), (path, viewer)


def test_an_authenticated_visitor_sees_what_root_sees_and_a_proxy_nothing(web: Web) -> None:
    far = Request(path=STATUS, peer="192.0.2.7", host="node1", authenticated=True)

    assert seen_secrets(web.site().answer(far).body.decode()) == set(SECRETS)
    assert web.get(STATUS, X_Forwarded_For="127.0.0.1").status == 403


def test_the_page_states_that_kernels_are_not_shown(web: Web) -> None:
    request = Request(path="/", peer="127.0.0.1", host="localhost", find_user=lambda: CAROL)

    text = web.site().answer(request).body.decode()
    assert "kernels of PID 600 and 601: not shown: only root" in text
    assert "kernels of 2 clients: not shown: only root" in text


def test_a_simulated_node_has_no_secrets() -> None:
    data = replace(status_input(replace(NODE, simulated=True)), viewer=None)
    with serving() as served:
        served.sight = data
        request = Request(path="/status", peer="127.0.0.1", host="localhost")
        assert seen_secrets(served.site().answer(request).body.decode()) == set(SECRETS)


@pytest.mark.parametrize("viewer", VIEWERS)
def test_a_document_as_others_see_it_differs_in_kernels_only(viewer: int | None) -> None:
    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(each) for key, each in value.items() if not key.startswith("kernels")}
        return [without(each) for each in value] if isinstance(value, list) else value

    document = document_of(NODE)
    assert without(plain(seen_by(viewer, document))) == without(plain(document))
    assert seen_secrets(json.dumps(plain(seen_by(viewer, document)))) == may_see(viewer)


# -- two users ---------------------------------------------------------------------------------------------------------


def fetched(host: str, port: int, path: str) -> str:
    """Ask, and close the own direction of the connection before the answer."""
    # To resolve a host that is no bytes, Python reads files that another user may not read.
    with socket.create_connection((host.encode(), port), timeout=30) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()


@ONLY_ROOT
@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1"])
def test_a_local_visitor_sees_the_kernels_of_its_own_clients(host: str) -> None:
    with serving(("", 0)) as served:
        if ":" in host and served.server.addresses[0][0] != "::":
            pytest.skip("NOT RUN: this machine has no IPv6")
        served.sight = status_input(NODE)
        served.show()
        for uid in (ALICE, BOB, CAROL, 0):
            for path in ("/", "/status", STATUS):
                text = run_as(partial(become, uid), partial(fetched, host, served.server.port, path))
                assert "python3" in text or "train.py" in text
                assert seen_secrets(text) == may_see(uid), (uid, path)


@pytest.mark.parametrize("command", ["status", "incidents"])
def test_the_service_socket_answers_as_its_user_may_see(command: str, tmp_path: Path, monkeypatch: Any) -> None:
    running = Running(tmp_path, NODE, HandClock(NODE.at))
    running.remember(*NODE.incidents.values())
    arguments = {"limit": 5} if command == "incidents" else {}
    with running.service.service_socket():
        for viewer in (0, ALICE, CAROL):
            monkeypatch.setattr("exporter.web.server.peer_of", lambda _, viewer=viewer: (1, viewer))
            monkeypatch.setattr("os.geteuid", lambda viewer=viewer: viewer)
            answer = query_service(tmp_path, command, 30.0, **arguments)
            assert answer is not None
            assert seen_secrets(json.dumps(answer)) == may_see(viewer)


def test_a_request_to_the_service_socket_cannot_name_its_viewer(tmp_path: Path, monkeypatch: Any) -> None:
    running = Running(tmp_path, NODE, HandClock(NODE.at))
    monkeypatch.setattr("exporter.web.server.peer_of", lambda _: (1, CAROL))
    monkeypatch.setattr("os.geteuid", lambda: CAROL)
    with running.service.service_socket(), pytest.raises(Exception, match="TypeError"):
        query_service(tmp_path, "status", 30.0, viewer=0)
