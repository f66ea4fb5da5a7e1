"""A fault becomes one incident, however it is told of; what is no fault becomes none."""

from dataclasses import replace

import pytest

from exporter.model.event import EventName
from exporter.model.incident import Incident, IncidentEnd
from exporter.model.node import Node
from exporter.model.observation import KernelRecord, Observation
from tests.builders import (
    AT,
    DAEMON,
    GPU,
    OTHER_GPU,
    SENSORS,
    SERVER,
    Reduced,
    active,
    at_work,
    clients,
    daemon_process,
    exited,
    gpu_reading,
    look,
    no_daemon,
    node,
    process,
    reduced,
    server_log,
    servers,
    status,
)

A, B, C = 600, 601, 602
LATE = 700

UP = reduced(
    *at_work(),
    daemon_process(),
    gpu_reading((A, B, C), **SENSORS),
    *(line for pid in (A, B, C) for line in server_log(active(pid))),
    *(process(pid) for pid in (A, B, C)),
).node
"""A server with three clients on the one GPU."""


def block(*victims: int, at: float = AT + 5, devices: tuple[int, ...] = (0,)) -> tuple[Observation, ...]:
    """The server's log tells of a fault, and the daemon confirms it."""
    return (*claimed(*victims, at=at, devices=devices), status("FAULT", at=at))


def claimed(*victims: int, at: float = AT + 5, devices: tuple[int, ...] = (0,)) -> tuple[Observation, ...]:
    """The server's log tells of a fault."""
    return server_log(
        "Server is handling a fatal GPU error.",
        *(f"Client {{PID: {pid}, Context ID: 1}} on device 0 to be torn down" for pid in victims),
        "The following devices will be reset:",
        *map(str, devices),
        "The following client process have a sticky error set:",
        *map(str, victims),
        at=at,
    )


def leaves(*pids: int, at: float) -> tuple[Observation, ...]:
    """Clients exit: first their contexts end, then they are disconnected, and their processes have ended."""
    return tuple(
        seen
        for pid in pids
        for seen in (
            *server_log(
                f"Client {{PID: {pid}, Context ID: 1}} exiting. Number of active client contexts is 2.",
                f"Client process {pid} disconnected",
                at=at,
            ),
            exited(pid, at=at),
        )
    )


def reset(at: float, *devices: int) -> tuple[Observation, ...]:
    """The last of them has left each device."""
    return server_log(
        *(f"Destroy server context on device {device} (NVIDIA H200)" for device in devices or (0,)), at=at
    )


def refused(pid: int, at: float) -> tuple[Observation, ...]:
    """A newcomer is turned away."""
    return server_log(
        f"Server teardown in progress. Refusing to accept new client {{PID: {pid}, Context ID: 0}}",
        f"Failed to accept client {{PID: {pid}, Context ID: 0}} with status 807",
        at=at,
    )


def xid(number: int, at: float, pid: int | None = None, place: str = "0000:00:06") -> KernelRecord:
    """The kernel's log tells of an Xid."""
    whose = "" if pid is None else f"pid={pid}, name=train.py, "
    return KernelRecord(at=at, record=f"4,358,58747868,-;NVRM: Xid (PCI:{place}): {number}, {whose}MMU Fault")


def time_passes(at: float) -> Observation:
    """The logs are looked at, and there is nothing new."""
    return look("log", at=at)


def incidents(story: Reduced) -> list[Incident]:
    return list(story.node.incidents.values())


def only(story: Reduced) -> Incident:
    (incident,) = incidents(story)
    return incident


def over(*seen: Observation, start: Node = UP) -> Reduced:
    """The story of a fault at 5 s whose victims leave at once, and of all that is still heard of it."""
    return reduced(
        *block(A, B, C), *leaves(A, B, C, at=AT + 5.03), *reset(AT + 5.1), *seen, time_passes(AT + 8), start=start
    )


class TestOne:
    """One fault is one incident, however many lines tell of it; two in a row are two."""

    def test_a_fault_that_is_over_before_any_poll(self) -> None:
        """Where all exit at once it takes 0.1 s."""
        story = over()
        incident = only(story)
        assert (incident.ending, incident.affected, incident.gpus) == (IncidentEnd.RECOVERED, (A, B, C), (GPU,))
        assert incident.seconds == pytest.approx(0.1)
        assert [each.event for each in story.events if each.incident] == [EventName.FAULT, EventName.FAULT_RECOVERED]

    def test_its_opening_is_told_as_soon_as_its_victims_are(self) -> None:
        """By then the log has told the devices."""
        story = reduced(*block(A, B, C), start=UP)
        (opening,) = story.of(EventName.FAULT)
        assert (opening.at, opening.daemon, opening.server) == (AT + 5, DAEMON, SERVER)
        assert opening.as_json()["gpus"] == [GPU]

    def test_a_block_that_is_read_twice(self) -> None:
        """Its stamp says that it is the same one, also after its end."""
        assert only(over(*block(A, B, C))).ending is IncidentEnd.RECOVERED
        assert only(reduced(*block(A, B, C), *block(A, B, C), start=UP)).affected == (A, B, C)

    def test_the_state_adds_nothing_to_the_block(self) -> None:
        """Whichever comes first."""
        story = reduced(
            status("FAULT", at=AT + 4.9),
            *block(A, B),
            status("FAULT", at=AT + 5.5),
            clients(A, B, at=AT + 5.6),
            start=UP,
        )
        assert only(story).affected == (A, B)

    def test_the_block_tells_whom_a_fault_hit_that_the_state_had_told_of(self) -> None:
        """What was inferred gives way."""
        story = reduced(status("FAULT", at=AT + 4), status("FAULT", at=AT + 4.9), *block(A, B), start=UP)
        assert only(story).affected == (A, B)

    def test_two_in_a_row(self) -> None:
        """A newcomer that faults at once, 0.3 s later."""
        again = (
            *server_log(active(LATE), at=AT + 5.3),
            *block(LATE, at=AT + 5.4),
            xid(31, AT + 5.4, LATE),
            *leaves(LATE, at=AT + 5.45),
            *reset(AT + 5.5),
        )
        story = over(*again)
        assert [each.affected for each in incidents(story)] == [(A, B, C), (LATE,)]
        assert story.daemon.totals.faults == len(story.of(EventName.FAULT_RECOVERED)) == 2

    @pytest.mark.parametrize("devices", [(0,), (1,)])
    def test_two_that_are_read_in_one_look(self, devices: tuple[int, ...]) -> None:
        """One after the other, or of two GPUs at a time: each is one of its own."""
        first = (*block(A), *(leaves(A, at=AT + 5.1) + reset(AT + 5.1) if devices == (0,) else ()))
        second = (*block(B, C, at=AT + 5.6, devices=devices), xid(31, AT + 5.6, B))
        story = reduced(*(replace(each, at=AT + 5.7) for each in (*first, *second)), time_passes(AT + 6.3), start=UP)
        assert [each.affected for each in incidents(story)] == [(A,), (B, C)]
        assert story.daemon.totals.faults == len(story.of(EventName.FAULT)) == 2

    def test_one_client_that_faults_both_its_gpus_makes_one(self) -> None:
        """It went with a kernel in flight on each; nobody else is on both."""
        seen = (*block(A), *block(B, at=AT + 5.037, devices=(1,)), *leaves(A, B, at=AT + 5.08), *reset(AT + 5.1, 1))
        story = reduced(*seen, start=UP)
        assert (only(story).affected, only(story).open) == ((A, B), True)
        assert only(reduced(*reset(AT + 5.2, 0), start=story.node)).ending is IncidentEnd.RECOVERED

    def test_one_that_is_long_forgotten_is_not_found_again(self) -> None:
        """The server still has the block that told of it."""
        later = (*server_log(active(LATE), at=AT + 8000), servers(SERVER, at=AT + 9000), status("ACTIVE", at=AT + 9001))
        story = reduced(*later, start=over().node)
        assert (incidents(story), story.daemon.totals.faults) == ([], 1)
        again = reduced(status("FAULT", at=AT + 9500), status("FAULT", at=AT + 9510), start=story.node)
        assert (only(again).block_timestamp, only(again).detected_at) == (None, AT + 9510)

    def test_another_one_of_other_clients_while_the_first_holds_on(self) -> None:
        """On a GPU that the first did not reach."""
        story = reduced(*block(A), *claimed(B, at=AT + 6, devices=(1,)), xid(31, AT + 6, B), start=UP)
        assert [each.affected for each in incidents(story)] == [(A,), (B,)]

    def test_a_second_block_that_nothing_else_confirms_is_no_other_fault(self) -> None:
        """The daemon's FAULT is explained by the first fault."""
        story = reduced(*block(A), *block(B, at=AT + 6, devices=(1,)), time_passes(AT + 17), start=UP)
        assert [each.affected for each in incidents(story)] == [(A,)]
        assert story.daemon.totals.log_contradictions["fault"] == 1

    def test_a_second_telling_of_the_same_clients_is_the_same_fault(self) -> None:
        """Whoever has the error already cannot be hit again."""
        assert only(reduced(*block(A, B), *block(B, at=AT + 6), start=UP)).affected == (A, B)


class TestAffected:
    """Everyone with the sticky error, as the log told; else whoever shares the GPU."""

    def test_they_are_who_was_told_in_whatever_part_of_the_block(self) -> None:
        """The log tells each of them two or three times."""
        whole = claimed(A, B)
        for cut in range(2, len(whole) + 1):
            seen = (*whole[:cut], status("FAULT", at=AT + 5), *reset(AT + 6), time_passes(AT + 8))
            incident = only(reduced(*seen, start=UP))
            assert set(incident.affected) <= {A, B}
            assert A in incident.affected

    def test_where_nothing_was_told_they_are_all_who_share_the_gpu(self) -> None:
        """And it is said that this was inferred."""
        story = reduced(status("FAULT", at=AT + 4), status("FAULT", at=AT + 5), start=UP)
        assert (set(only(story).affected), only(story).affected_confirmed) == ({A, B, C}, False)

    def test_what_is_known_of_each_is_kept(self) -> None:
        """They are gone a moment later."""
        story = over(*(exited(pid, at=AT + 6) for pid in (A, B, C)))
        tenant = only(story).client_details[A]
        assert (tenant.user, tenant.command, tenant.memory_bytes.keys()) == ("alice", "train.py", {GPU})

    def test_it_counts(self) -> None:
        """By clients, not by lines."""
        assert over().daemon.totals.fault_affected == 3

    def test_whoever_was_taken_for_one_by_mistake_is_not_told_of_nor_counted(self) -> None:
        """Nor does it hold up anybody."""
        inferred = (status("FAULT", at=AT + 3.9), status("FAULT", at=AT + 4.9), time_passes(AT + 6))
        story = reduced(*inferred, *block(A, at=AT + 6.1), time_passes(AT + 9), start=UP)
        assert set(only(story).blockers) == set(only(story).affected) == {A}
        assert story.daemon.totals.fault_affected == 1

    def test_a_log_that_comes_when_they_are_counted_corrects_whom_it_hit_and_counts_nobody_twice(self) -> None:
        """A counter never falls; so it is the most that there were."""
        inferred = (status("FAULT", at=AT + 3.9), status("FAULT", at=AT + 4.9), time_passes(AT + 8))
        late = block(A, B, at=AT + 9)
        first = reduced(*inferred, *late[:-2], late[-1], time_passes(AT + 10), start=UP)
        whole = reduced(*inferred, *late, time_passes(AT + 12), start=UP)
        assert set(only(first).affected) <= set(only(whole).affected) == {A, B}
        assert first.daemon.totals.fault_affected == whole.daemon.totals.fault_affected == 3


class TestXids:
    """An Xid joins the fault of its time and GPU, and proves none by itself."""

    @pytest.mark.parametrize("at", [AT + 3.1, AT + 4.98, AT + 5.05, AT + 6.9])
    def test_one_within_two_seconds_belongs_to_it(self, at: float) -> None:
        """Before or after the block."""
        seen = sorted((*block(A, B, C), *reset(AT + 5.1), xid(31, at, A)), key=lambda each: each.at)
        story = reduced(*seen, time_passes(AT + 8), start=UP)
        assert [(each.number, each.pid) for each in only(story).xids] == [(31, A)]
        assert only(story).started_at == min(at, AT + 5)

    @pytest.mark.parametrize("at", [AT + 2.9, AT + 7.1])
    def test_one_that_is_further_away_does_not(self, at: float) -> None:
        """It is an event of its own."""
        seen = sorted(
            (*block(A, B, C), *reset(AT + 5.1), xid(31, at, A), time_passes(AT + 8)), key=lambda each: each.at
        )
        assert only(reduced(*seen, start=UP)).xids == ()

    def test_one_alone_is_no_fault(self) -> None:
        """Nobody got an error."""
        assert incidents(reduced(xid(31, AT + 5, A), time_passes(AT + 8), start=UP)) == []

    def test_one_of_a_process_beside_mps_is_nobody_elses(self) -> None:
        """Though it comes at the same time, on the same GPU."""
        beside = reduced(gpu_reading((A, B, C), beside=(801,), at=AT + 1), start=UP).node
        assert only(over(xid(31, AT + 5.2, 801), start=beside)).xids == ()

    def test_one_of_another_gpu_does_not(self) -> None:
        """It has other clients."""
        other = reduced(gpu_reading((), gpu=OTHER_GPU, index=1, pci_bus_id="00000000:00:07.0"), start=UP).node
        assert only(over(xid(31, AT + 5.2, place="0000:00:07"), start=other)).xids == ()

    def test_of_two_faults_in_a_row_each_has_its_own(self) -> None:
        """What tells of the one must not blame anybody for the other."""
        again = (*server_log(active(LATE), at=AT + 5.9), *block(LATE, at=AT + 6.4), xid(13, AT + 6.5), *reset(AT + 6.6))
        story = reduced(*block(A), xid(31, AT + 5.1), *leaves(A, at=AT + 5.2), *reset(AT + 5.3), *again, start=UP)
        assert [[each.number for each in one.xids] for one in incidents(story)] == [[31], [13]]

    def test_one_of_another_gpu_moments_before_does_not(self) -> None:
        """It was another fault's, of the same server's other GPU."""
        other = reduced(gpu_reading((LATE,), gpu=OTHER_GPU, index=1, pci_bus_id="00000000:00:07.0"), start=UP).node
        story = reduced(xid(31, AT + 4, place="0000:00:07"), *block(A, B, C), start=other)
        assert (only(story).xids, only(story).gpus, only(story).started_at) == ((), (GPU,), AT + 5)


class TestRecovery:
    """A server stays in FAULT until the last affected client has let go."""

    HELD = reduced(*block(A, B, C), *leaves(A, at=AT + 5.1), time_passes(AT + 6.2), start=UP)

    def test_whoever_has_not_let_go_after_a_second_holds_it_up(self) -> None:
        """At the first moment nobody has."""
        assert set(only(self.HELD).blockers) == {B, C}
        assert not only(reduced(*block(A, B, C), start=UP)).blockers

    def test_they_are_remembered_with_how_long(self) -> None:
        """Also when they have gone."""
        left = reduced(*leaves(B, at=AT + 9), *leaves(C, at=AT + 15), *reset(AT + 15), start=self.HELD.node)
        blocking = only(left).blocking
        assert {pid: (stay.since, stay.until) for pid, stay in blocking.items()} == {
            B: (AT + 5, AT + 9),
            C: (AT + 5, AT + 15),
        }
        assert not only(left).blockers

    def test_each_change_is_told_once(self) -> None:
        """Who holds it up, and what late evidence adds."""
        left = reduced(
            time_passes(AT + 7.5), *leaves(B, at=AT + 9), *leaves(C, at=AT + 15), *reset(AT + 15), start=self.HELD.node
        )
        changes = [*self.HELD.of(EventName.FAULT_CHANGED), *left.of(EventName.FAULT_CHANGED)]
        assert [each.reason for each in changes] == ["blocking", "suspects", "blocking", "blocking"]

    def test_newcomers_are_refused_meanwhile(self) -> None:
        """They are told of with the fault."""
        seen = (*refused(LATE, AT + 7), *leaves(B, C, at=AT + 9), *reset(AT + 9), time_passes(AT + 9.5))
        story = reduced(*seen, start=self.HELD.node)
        assert [each.pid for each in only(story).refused] == [LATE]
        assert story.of(EventName.FAULT_RECOVERED)[0].as_json()["refused"] == [LATE]

    def test_a_server_that_is_killed_ends_it_too(self) -> None:
        """That is no recovery."""
        story = reduced(exited(SERVER, at=AT + 9), servers(at=AT + 10), servers(at=AT + 12), start=self.HELD.node)
        assert only(story).ending is IncidentEnd.SERVER_GONE
        assert story.daemon.totals.fault_recoveries.count == 0

    def test_so_does_a_daemon(self) -> None:
        """Nor is that."""
        story = reduced(exited(441, at=AT + 9), no_daemon(at=AT + 9.1), start=self.HELD.node)
        assert only(story).ending is IncidentEnd.DAEMON_GONE

    def test_so_does_a_daemon_that_another_replaces(self) -> None:
        """Though that one does not say which servers it has."""
        story = reduced(daemon_process(442, at=AT + 9), start=self.HELD.node)
        assert not only(story).open

    def test_a_server_that_does_not_recover_though_all_have_gone_is_stuck(self) -> None:
        """It lost count of one of them, and refuses everybody until it is ended."""
        story = reduced(*leaves(B, C, at=AT + 7), time_passes(AT + 16.9), start=self.HELD.node)
        assert not only(story).stuck
        late = reduced(time_passes(AT + 17.1), start=story.node)
        assert (only(late).stuck, [each.reason for each in late.of(EventName.FAULT_CHANGED)]) == (True, ["stuck"])
        assert not only(reduced(*reset(AT + 20), start=late.node)).stuck

    def test_its_time_is_counted(self) -> None:
        """By the clock of the log."""
        recoveries = over().daemon.totals.fault_recoveries
        assert (recoveries.count, recoveries.within[0], recoveries.seconds) == (1, 1, pytest.approx(0.1))


class TestRestart:
    """What was open when the exporter ended is met again, and is the same fault."""

    def restarted(self) -> Node:
        """The node as the next run begins it."""
        before = TestRecovery.HELD.node
        return replace(reduced().node, incidents=before.incidents)

    def test_a_fault_that_goes_on_is_the_same(self) -> None:
        """It is neither told nor counted again."""
        seen = (*at_work()[:3], status("FAULT", at=AT + 20), clients(B, C, at=AT + 20), status("FAULT", at=AT + 25))
        story = reduced(*seen, start=self.restarted())
        assert set(only(story).blockers) == {B, C}
        assert story.of(EventName.FAULT) == []
        assert story.daemon.totals.faults == 0

    def test_one_that_was_over_by_then_ends(self) -> None:
        """When, nobody saw."""
        story = reduced(*at_work(), start=self.restarted())
        assert only(story).ending is IncidentEnd.RECOVERED

    def test_a_server_that_is_gone_by_then_ends_it(self) -> None:
        """The daemon does not list it any more."""
        seen = (servers(at=AT + 20), servers(at=AT + 22))
        assert only(reduced(*seen, start=self.restarted())).ending is IncidentEnd.SERVER_GONE

    def test_its_daemon_may_have_another_name_by_then(self) -> None:
        """The configuration names it now: it is the same server's fault, not another."""
        held = replace(node("main"), incidents=TestRecovery.HELD.node.incidents)
        seen = (
            *at_work(daemon="main")[:3],
            status("FAULT", at=AT + 20, daemon="main"),
            clients(B, C, at=AT + 20, daemon="main"),
        )
        goes_on = reduced(*seen, start=held)
        assert (only(goes_on).daemon, only(goes_on).open, goes_on.of(EventName.FAULT)) == ("main", True, [])
        well = reduced(status("ACTIVE", at=AT + 30, daemon="main"), start=goes_on.node)
        assert only(well).ending is IncidentEnd.RECOVERED

    def test_another_server_with_that_pid_is_another(self) -> None:
        """It began later."""
        known = reduced(process(SERVER, ticks=1), start=UP).node
        before = reduced(*block(A), start=known).node.incidents
        held = replace(node("main"), incidents=before)
        seen = (process(SERVER, ticks=2, at=AT + 20), *at_work(daemon="main", at=AT + 21))
        assert only(reduced(*seen, start=held)).daemon == DAEMON

    def test_nothing_ends_before_anything_was_seen(self) -> None:
        """Not to have looked proves nothing."""
        assert only(reduced(time_passes(AT + 20), start=self.restarted())).open


class TestBounds:
    """What one daemon says, true or not, is bounded, and hides no fault of another."""

    OTHER = "/tmp/mine"

    def noisy(self, start: Node = UP, begin: float = AT + 100) -> Node:
        """Every server of a daemon is in FAULT, and as often again one was that has recovered."""
        here = reduced(*(line for pid in range(64) for line in self.fault(9000 + pid, begin)), start=start)
        return here.node

    def fault(self, server: int, at: float) -> tuple[Observation, ...]:
        """A fault of one server of the other daemon."""
        lines = ("Server is handling a fatal GPU error.", "Client {PID: 5, Context ID: 1} on device 0 to be torn down")
        says_so = status("FAULT", server=server, daemon=self.OTHER, at=at)
        return (*server_log(active(5), *lines, server=server, daemon=self.OTHER, at=at), says_so)

    def over(self, server: int, at: float) -> tuple[Observation, ...]:
        """It is well again, and that has settled."""
        well = status("ACTIVE", server=server, daemon=self.OTHER, at=at + 1)
        return (*self.fault(server, at), replace(well, seconds=0.0), time_passes(at + 3))

    def test_many_that_are_open_hide_none_elsewhere(self) -> None:
        """Those of their own daemon they may."""
        noisy = reduced(*self.fault(9000, AT + 99), start=self.noisy()).node
        story = reduced(*block(A, at=AT + 101), start=noisy)
        assert [each.affected for each in incidents(story) if each.daemon == DAEMON] == [(A,)]
        assert len(incidents(story)) == 65

    def test_many_that_are_over_put_out_none_elsewhere(self) -> None:
        """Of their own daemon the eldest goes."""
        seen = [each for number in range(80) for each in self.over(9000, AT + 100 + 10 * number)]
        story = reduced(*seen, start=over().node)
        assert [each.affected for each in incidents(story) if each.daemon == DAEMON] == [(A, B, C)]
        assert len(incidents(story)) == 64

    def test_whom_it_hit_and_who_left_in_reset_are_bounded(self) -> None:
        """However long it lasts, and whatever the log goes on saying."""
        forged = [
            line
            for pid in range(100_000, 101_500)
            for line in server_log(f"Client {{PID: {pid}, Context ID: 1}} exiting. Worker is in reset.", at=AT + 5.5)
        ]
        (incident,) = incidents(reduced(*block(A), *forged, start=UP))
        assert len(incident.clues.in_reset) <= 1024


class TestNoFault:
    """Exits, leaving servers and collisions make no incident."""

    @pytest.mark.parametrize(
        "seen",
        [
            leaves(A, B, C, at=AT + 5),
            (status("FAULT", at=AT + 5), status(f"Server {SERVER} not found", at=AT + 5.1)),
            (exited(SERVER, at=AT + 5),),
            (exited(441, at=AT + 5), no_daemon(at=AT + 5)),
            refused(LATE, AT + 5),
            server_log("Server is handling", "The following client process have a sticky error set:", "600", at=AT + 5),
        ],
        ids=("exits", "a server that leaves", "a killed server", "a killed daemon", "a refusal", "half a line"),
    )
    def test_nothing(self, seen: tuple[Observation, ...]) -> None:
        """None of these harms a neighbour."""
        assert incidents(reduced(*seen, time_passes(AT + 8), start=UP)) == []
