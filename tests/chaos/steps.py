"""What is done to the stage: one step at a time, some of them while the last one is still being mended."""

import contextlib
import random
import signal
import time
from collections.abc import Iterable

from tests.chaos.onlooker import Life
from tests.chaos.order import close_breaker
from tests.chaos.stage import Stage
from tests.chaos.tenant import LINGER
from tests.eventually import PATIENCE_SECONDS
from tests.standin.mps import NotInTimeError, wait_until

SHORT_SECONDS = (0.05, 0.8)
"""Far below what any rule calls a hang."""

SERVER_SECONDS = 0.5

DO_NOTHING_SECONDS = (0.0, 0.6)

LEFT_ALONE_SECONDS = 6.0
"""For so long after it could be called hung, a server that is to be left alone is watched."""


def nothing(stage: Stage, chance: random.Random) -> None:
    """Tenants work, nobody disturbs them."""
    del stage
    time.sleep(chance.uniform(*DO_NOTHING_SECONDS))


# -- kills ---------------------------------------------------------------------------------------------------------


def kill_daemon(stage: Stage, _: random.Random) -> None:
    """SIGKILL: its server and their clients go with it."""
    _kill(stage, stage.daemon)


def terminate_daemon(stage: Stage, _: random.Random) -> None:
    """SIGTERM, which it dies of like of any other signal."""
    if (daemon := stage.daemon) is not None:
        stage.signal(daemon, signal.SIGTERM)
        wait_until(lambda: daemon.ended, "the daemon's end")


def kill_server(stage: Stage, _: random.Random) -> None:
    """SIGKILL: the daemon starts another as soon as a client comes."""
    _kill(stage, _some_server(stage))


def kill_daemon_over_a_stopped_server(stage: Stage, _: random.Random) -> None:
    """The server outlives it, and is in the way of nobody but its own clients."""
    if (server := _some_server(stage)) is not None:
        stage.signal(server, signal.SIGSTOP)
        _kill(stage, stage.daemon)


def _some_server(stage: Stage) -> Life | None:
    """That of the daemon: with clients that come all the time, there soon is one, if nothing keeps it from coming."""
    deadline = time.monotonic() + SERVER_SECONDS
    while stage.server is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return stage.server


def _kill(stage: Stage, life: Life | None) -> None:
    if life is not None:
        stage.signal(life, signal.SIGKILL)
        wait_until(lambda: life.ended, "the end of what was killed")


def kill_idle_client(stage: Stage, chance: random.Random) -> None:
    """SIGKILL between kernels harms nobody else."""
    for pid in _some_client(stage, chance):
        stage.kill_client(pid)


def kill_client_in_mid_kernel(stage: Stage, chance: random.Random) -> None:
    """A fault for all others, 150 ms later; they leave."""
    for pid in _some_client(stage, chance):
        stage.kill_client(pid, in_mid_kernel=True)


def _some_client(stage: Stage, chance: random.Random) -> Iterable[int]:
    """One of them; none where there is none, or the daemon hangs."""
    server = stage.limits.server
    if not stage.limits.answers or server is None or not server.clients:
        return ()
    return (chance.choice(sorted(server.clients)),)


# -- faults --------------------------------------------------------------------------------------------------------


def fault(stage: Stage, chance: random.Random) -> None:
    """Fatal for all clients; they leave."""
    for pid in _some_client(stage, chance):
        stage.fault(pid, chance.choice(("memory", "trap")))


def fault_with_short_lingerers(stage: Stage, chance: random.Random) -> None:
    """They hold up the end of it, for less than a deadline."""
    _fault_with_lingerers(stage, chance, chance.uniform(0.2, stage.terms.fault * 0.6))


def fault_with_long_lingerers(stage: Stage, chance: random.Random) -> None:
    """For longer than any deadline, or until they are ended."""
    _fault_with_lingerers(stage, chance, stage.terms.fault + 3 * stage.terms.step)


def _fault_with_lingerers(stage: Stage, chance: random.Random, seconds: float) -> None:
    linger = stage.mps.pipe_directory / LINGER
    for pid in _some_client(stage, chance):
        linger.touch()
        stage.fault(pid, "memory")
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and stage.in_fault():
            time.sleep(0.05)
        linger.unlink()


# -- stops ---------------------------------------------------------------------------------------------------------


def stop_daemon_shortly(stage: Stage, chance: random.Random) -> None:
    """A pause is no hang."""
    _stop(stage, stage.daemon, chance.uniform(*SHORT_SECONDS))


def stop_server_shortly(stage: Stage, chance: random.Random) -> None:
    """Whoever asks about it meanwhile hangs with it."""
    _stop(stage, _some_server(stage), chance.uniform(*SHORT_SECONDS))


def _stop(stage: Stage, life: Life | None, seconds: float) -> None:
    if life is None:
        return
    stage.signal(life, signal.SIGSTOP)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and life.ended is None:
        time.sleep(0.02)
    if life.ended is None:
        stage.signal(life, signal.SIGCONT)


def stop_daemon_for_long(stage: Stage, _: random.Random) -> None:
    """It hangs, until it is replaced."""
    if (daemon := stage.daemon) is not None:
        stage.signal(daemon, signal.SIGSTOP)
        wait_until(lambda: daemon.ended or _breaker_closed(stage), "the end of a hung daemon", stage.patience)
        wait_until(lambda: daemon.ended, "the end of a hung daemon", stage.patience)


def _breaker_closed(stage: Stage) -> bool:
    """Close the breaker if the restarts before have spent the budget; return whether that was so."""
    if not stage.circuit_open():
        return False
    close_breaker(stage)
    return True


def stop_server_for_long(stage: Stage, _: random.Random) -> None:
    """It is named; whether it is ended is the operator's choice, and so here of the terms."""
    if (server := _some_server(stage)) is None:
        return
    stage.signal(server, signal.SIGSTOP)
    deadline = time.monotonic() + (stage.patience if stage.terms.ends else stage.terms.hung_after + LEFT_ALONE_SECONDS)
    while time.monotonic() < deadline and server.ended is None:
        time.sleep(0.05)
    ended = server.ended is not None
    if not ended:
        stage.signal(server, signal.SIGCONT)
    assert ended == stage.terms.ends, f"server {server.pid}, which hung, was {'' if ended else 'not '}ended"


# -- operators -----------------------------------------------------------------------------------------------------


QUIT_SECONDS = 10.0
"""An operator looks after this time whether the daemon has ended."""


def operator_quits_and_starts_again(stage: Stage, chance: random.Random) -> None:
    """What an operator stopped stays stopped, until it is started."""
    if not stage.limits.answers or stage.daemon is None:
        return
    stage.wanted = False
    stage.deeds.add("quit", stage.daemon.pid)
    with stage.holding_session():
        _quit(stage)
    stopped = time.time()
    time.sleep(chance.uniform(0.3, 3.0))
    assert stage.daemon is None, f"daemon {stage.daemon.pid} runs, which an operator had stopped"
    assert not [at for at in stage.starts() if at > stopped], "a daemon was started that an operator had stopped"
    stage.start_daemon()


def _quit(stage: Stage) -> None:
    """Quit the daemon; again, if a forger kept the command from it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while stage.daemon is not None:
        assert time.monotonic() < deadline, "the daemon did not quit"
        stage.command("quit -t 1")
        with contextlib.suppress(NotInTimeError):
            wait_until(lambda: stage.daemon is None, "the daemon's end", QUIT_SECONDS)


SETTINGS = (
    "set_default_active_thread_percentage 100",
    "set_default_active_thread_percentage 70",
    "set_default_device_pinned_mem_limit 0 4G",
    "set_active_thread_percentage {server} 90",
    "set_device_pinned_mem_limit {server} 0 3G",
    "set_default_client_priority 1",
)


def operator_sets_a_limit(stage: Stage, chance: random.Random) -> None:
    """By hand, on the daemon or on its server; the configuration says otherwise."""
    server = _some_server(stage)
    if stage.limits.answers and server is not None:
        stage.command(chance.choice(SETTINGS).format(server=server.pid))


def operator_holds_a_session(stage: Stage, chance: random.Random) -> None:
    """Every other session is refused. If the daemon dies before the session is open, there is none to hold."""
    if not stage.limits.answers:
        return
    stage.deeds.add("hold")
    with contextlib.suppress(ConnectionRefusedError), stage.holding_session(), stage.mps.held_session():
        time.sleep(chance.uniform(*SHORT_SECONDS))


# -- the exporter --------------------------------------------------------------------------------------------------


def kill_exporter(stage: Stage, chance: random.Random) -> None:
    """SIGKILL, and after a while another one starts, with the state that it left."""
    stage.end_exporter(signal.SIGKILL)
    time.sleep(chance.choice((0.0, 0.0, chance.uniform(0.0, 1.5))))
    stage.start_exporter()


def kill_exporter_as_it_acts(stage: Stage, chance: random.Random) -> None:
    """Between the daemon's death and its return."""
    kill_daemon(stage, chance)
    time.sleep(chance.uniform(0.0, 0.6))
    kill_exporter(stage, chance)


def terminate_exporter(stage: Stage, _: random.Random) -> None:
    """SIGTERM: it ends well."""
    code = stage.end_exporter(signal.SIGTERM)
    assert code == 0, f"asked to end, the exporter ended with {code}"
    stage.start_exporter()


def daemon_dies_while_no_exporter_runs(stage: Stage, chance: random.Random) -> None:
    """Who starts then finds it dead, and knows from before that nobody had stopped it."""
    stage.end_exporter(signal.SIGKILL)
    kill_daemon(stage, chance)
    stage.start_exporter()


# -- the budget ----------------------------------------------------------------------------------------------------


def spend_the_budget(stage: Stage, chance: random.Random) -> None:
    """Kill it as often as it comes back; then it stays down, over a restart of the exporter, until `resume`."""
    del chance
    for _ in range(stage.terms.restarts + 1):
        if (daemon := stage.daemon) is None:
            break
        _kill(stage, daemon)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline and stage.daemon is None and not stage.circuit_open():
            time.sleep(0.02)
    assert stage.daemon is None, "a daemon that was killed too often came back"
    assert stage.circuit_open(), "the daemon stays away, and the breaker is not open"
    starts = len(stage.starts())
    stage.end_exporter(signal.SIGKILL)
    stage.start_exporter()
    wait_until(stage.circuit_open, "an open breaker after a restart of the exporter", PATIENCE_SECONDS)
    time.sleep(1.0)
    assert len(stage.starts()) == starts, "a restart though the breaker was open"
