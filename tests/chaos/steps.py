"""What is done to the daemon, its clients and the exporter. A step may begin before the recovery from another."""

import contextlib
import random
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.chaos.client_loop import LINGER
from tests.chaos.harness import Harness
from tests.chaos.process_watch import MpsProcess
from tests.chaos.recovery import close_circuit
from tests.chaos.terms import RULES
from tests.eventually import PATIENCE_SECONDS
from tests.standin.mps import NotInTimeError, wait_until

SHORT_SECONDS = (0.05, 0.8)
"""Far below what any rule calls a hang."""

SERVER_SECONDS = 0.5

DO_NOTHING_SECONDS = (0.0, 0.6)

LEFT_ALONE_SECONDS = 6.0
"""For so long after it could be called hung, a server that is to be left alone is watched."""


def nothing(harness: Harness, chance: random.Random) -> None:
    """Clients work undisturbed."""
    del harness
    time.sleep(chance.uniform(*DO_NOTHING_SECONDS))


# -- kills ---------------------------------------------------------------------------------------------------------


def kill_daemon(harness: Harness, _: random.Random) -> None:
    """SIGKILL: its server and their clients go with it."""
    _kill(harness, harness.daemon)


def terminate_daemon(harness: Harness, _: random.Random) -> None:
    """SIGTERM, which it dies of like of any other signal."""
    if (daemon := harness.daemon) is not None:
        harness.signal(daemon, signal.SIGTERM)
        wait_until(lambda: daemon.ended, "the daemon's end")


def kill_server(harness: Harness, _: random.Random) -> None:
    """SIGKILL: the daemon starts another as soon as a client comes."""
    _kill(harness, _some_server(harness))


def kill_daemon_over_a_stopped_server(harness: Harness, _: random.Random) -> None:
    """The server outlives it, and delays only its own clients."""
    if (server := _some_server(harness)) is not None:
        harness.signal(server, signal.SIGSTOP)
        _kill(harness, harness.daemon)


def _some_server(harness: Harness) -> MpsProcess | None:
    """That of the daemon: with clients that come all the time, there soon is one, if nothing keeps it from coming."""
    deadline = time.monotonic() + SERVER_SECONDS
    while harness.server is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return harness.server


def _kill(harness: Harness, process: MpsProcess | None) -> None:
    if process is not None:
        harness.signal(process, signal.SIGKILL)
        wait_until(lambda: process.ended, "the end of what was killed")


def kill_idle_client(harness: Harness, chance: random.Random) -> None:
    """SIGKILL between kernels affects no other client."""
    for pid in _some_client(harness, chance):
        harness.kill_client(pid)


def kill_client_in_mid_kernel(harness: Harness, chance: random.Random) -> None:
    """A fault for all others, 150 ms later; they leave."""
    for pid in _some_client(harness, chance):
        harness.kill_client(pid, in_mid_kernel=True)


def _some_client(harness: Harness, chance: random.Random) -> Iterable[int]:
    """One of them; none where there is none, or the daemon hangs."""
    server = harness.limits.server
    if not harness.limits.answers or server is None or not server.clients:
        return ()
    return (chance.choice(sorted(server.clients)),)


# -- faults --------------------------------------------------------------------------------------------------------


def fault(harness: Harness, chance: random.Random) -> None:
    """Fatal for all clients; they leave."""
    for pid in _some_client(harness, chance):
        harness.fault(pid, chance.choice(("memory", "trap")))


def fault_with_short_lingerers(harness: Harness, chance: random.Random) -> None:
    """They hold up the end of it, for less than a deadline."""
    _fault_with_lingerers(harness, chance, chance.uniform(0.2, RULES.fault * 0.6))


def fault_with_long_lingerers(harness: Harness, chance: random.Random) -> None:
    """For longer than any deadline, or until they are ended."""
    _fault_with_lingerers(harness, chance, RULES.fault + 3 * RULES.step)


def _fault_with_lingerers(harness: Harness, chance: random.Random, seconds: float) -> None:
    linger = harness.mps.pipe_directory / LINGER
    for pid in _some_client(harness, chance):
        linger.touch()
        harness.fault(pid, "memory")
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and harness.in_fault():
            time.sleep(0.05)
        linger.unlink()


# -- stops ---------------------------------------------------------------------------------------------------------


def stop_daemon_shortly(harness: Harness, chance: random.Random) -> None:
    """A pause is no hang."""
    _stop(harness, harness.daemon, chance.uniform(*SHORT_SECONDS))


def stop_server_shortly(harness: Harness, chance: random.Random) -> None:
    """A command about the server hangs meanwhile."""
    _stop(harness, _some_server(harness), chance.uniform(*SHORT_SECONDS))


def _stop(harness: Harness, process: MpsProcess | None, seconds: float) -> None:
    if process is None:
        return
    harness.signal(process, signal.SIGSTOP)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.ended is None:
        time.sleep(0.02)
    if process.ended is None:
        harness.signal(process, signal.SIGCONT)


def stop_daemon_for_long(harness: Harness, _: random.Random) -> None:
    """It hangs, until it is replaced."""
    if (daemon := harness.daemon) is not None:
        harness.signal(daemon, signal.SIGSTOP)
        wait_until(lambda: daemon.ended or _circuit_closed(harness), "the end of a hung daemon", harness.patience)
        wait_until(lambda: daemon.ended, "the end of a hung daemon", harness.patience)


def _circuit_closed(harness: Harness) -> bool:
    """Close the circuit if the restarts before have spent the budget; return whether that was so."""
    if not harness.circuit_open():
        return False
    close_circuit(harness)
    return True


def stop_server_for_long(harness: Harness, _: random.Random) -> None:
    """The exporter reports it, and ends it only if it may."""
    if (server := _some_server(harness)) is None:
        return
    harness.signal(server, signal.SIGSTOP)
    deadline = time.monotonic() + (harness.patience if harness.may_end else RULES.hung_after + LEFT_ALONE_SECONDS)
    while time.monotonic() < deadline and server.ended is None:
        time.sleep(0.05)
    ended = server.ended is not None
    if not ended:
        harness.signal(server, signal.SIGCONT)
    assert ended == harness.may_end, f"server {server.pid}, which hung, was {'' if ended else 'not '}ended"


# -- operators -----------------------------------------------------------------------------------------------------


QUIT_SECONDS = 10.0
"""An operator looks after this time whether the daemon has ended."""


def operator_quits_and_starts_again(harness: Harness, chance: random.Random) -> None:
    """What an operator stopped stays stopped, until it is started."""
    if not harness.limits.answers or harness.daemon is None:
        return
    harness.wanted = False
    harness.actions.add("quit", harness.daemon.pid)
    with harness.holding_session():
        _quit(harness)
    stopped = time.time()
    time.sleep(chance.uniform(0.3, 3.0))
    assert harness.daemon is None, f"daemon {harness.daemon.pid} runs, which an operator had stopped"
    assert not [at for at in harness.starts() if at > stopped], "a daemon was started that an operator had stopped"
    harness.start_daemon()


def _quit(harness: Harness) -> None:
    """Quit the daemon; again, if a forger kept the command from it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while harness.daemon is not None:
        assert time.monotonic() < deadline, "the daemon did not quit"
        harness.command("quit -t 1")
        with contextlib.suppress(NotInTimeError):
            wait_until(lambda: harness.daemon is None, "the daemon's end", QUIT_SECONDS)


SETTINGS = (
    "set_default_active_thread_percentage 100",
    "set_default_active_thread_percentage 70",
    "set_default_device_pinned_mem_limit 0 4G",
    "set_active_thread_percentage {server} 90",
    "set_device_pinned_mem_limit {server} 0 3G",
    "set_default_client_priority 1",
)


def operator_sets_a_limit(harness: Harness, chance: random.Random) -> None:
    """By hand, on the daemon or on its server; the configuration says otherwise."""
    server = _some_server(harness)
    if harness.limits.answers and server is not None:
        harness.command(chance.choice(SETTINGS).format(server=server.pid))


def operator_holds_a_session(harness: Harness, chance: random.Random) -> None:
    """Every other session is refused. If the daemon dies before the session is open, there is none to hold."""
    if not harness.limits.answers:
        return
    harness.actions.add("hold")
    with contextlib.suppress(ConnectionRefusedError), harness.holding_session(), harness.mps.held_session():
        time.sleep(chance.uniform(*SHORT_SECONDS))


# -- the exporter --------------------------------------------------------------------------------------------------


def kill_exporter(harness: Harness, chance: random.Random) -> None:
    """SIGKILL, and after a while another one starts, with the state that it left."""
    harness.end_exporter(signal.SIGKILL)
    time.sleep(chance.choice((0.0, 0.0, chance.uniform(0.0, 1.5))))
    harness.start_exporter()


def kill_exporter_as_it_acts(harness: Harness, chance: random.Random) -> None:
    """Between the daemon's death and its return."""
    kill_daemon(harness, chance)
    time.sleep(chance.uniform(0.0, 0.6))
    kill_exporter(harness, chance)


def terminate_exporter(harness: Harness, _: random.Random) -> None:
    """SIGTERM: it ends well."""
    code = harness.end_exporter(signal.SIGTERM)
    assert code == 0, f"asked to end, the exporter ended with {code}"
    harness.start_exporter()


def daemon_dies_while_no_exporter_runs(harness: Harness, chance: random.Random) -> None:
    """The next exporter finds it down, and knows from its state that no operator had stopped it."""
    harness.end_exporter(signal.SIGKILL)
    kill_daemon(harness, chance)
    harness.start_exporter()


# -- the budget ----------------------------------------------------------------------------------------------------


def spend_the_budget(harness: Harness, chance: random.Random) -> None:
    """Kill it as often as it comes back; then it stays down, over a restart of the exporter, until `resume`."""
    del chance
    for _ in range(RULES.restarts + 1):
        if (daemon := harness.daemon) is None:
            break
        _kill(harness, daemon)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline and harness.daemon is None and not harness.circuit_open():
            time.sleep(0.02)
    assert harness.daemon is None, "a daemon that was killed too often came back"
    assert harness.circuit_open(), "the daemon stays away, and the circuit is not open"
    starts = len(harness.starts())
    harness.end_exporter(signal.SIGKILL)
    harness.start_exporter()
    wait_until(harness.circuit_open, "an open circuit after a restart of the exporter", PATIENCE_SECONDS)
    time.sleep(1.0)
    assert len(harness.starts()) == starts, "a restart though the circuit was open"


# -- how often each step is taken --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """What is done, and how often of 500 times. `needs_recovery`: the effects of earlier steps must be over."""

    do: Callable[[Harness, random.Random], None]
    often: int
    needs_recovery: bool = False

    @property
    def name(self) -> str:
        """What it is called."""
        return self.do.__name__


STEPS = (
    Step(nothing, 40),
    Step(kill_daemon, 14),
    Step(terminate_daemon, 3),
    Step(kill_server, 72),
    Step(kill_daemon_over_a_stopped_server, 4),
    Step(kill_idle_client, 80),
    Step(kill_client_in_mid_kernel, 70),
    Step(fault, 70),
    Step(fault_with_short_lingerers, 8),
    Step(fault_with_long_lingerers, 2),
    Step(stop_daemon_shortly, 20),
    Step(stop_server_shortly, 20),
    Step(stop_daemon_for_long, 2, needs_recovery=True),
    Step(stop_server_for_long, 2, needs_recovery=True),
    Step(operator_quits_and_starts_again, 5, needs_recovery=True),
    Step(operator_sets_a_limit, 60),
    Step(operator_holds_a_session, 12),
    Step(kill_exporter, 5),
    Step(kill_exporter_as_it_acts, 3),
    Step(terminate_exporter, 3),
    Step(daemon_dies_while_no_exporter_runs, 3),
    Step(spend_the_budget, 2, needs_recovery=True),
)


def shuffled_steps(chance: random.Random, size: int) -> list[Step]:
    """Return so many of them, each at least once, in random order."""
    whole = sum(step.often for step in STEPS)
    chosen = [step for step in STEPS for _ in range(max(1, round(step.often * size / whole)))]
    chance.shuffle(chosen)
    return chosen
