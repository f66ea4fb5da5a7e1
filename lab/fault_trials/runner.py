"""Run fault trials: one daemon and one exporter for all, a recorder and the truth for each."""

import gzip
import json
import platform
import resource
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.gpu.clients import NO_DAEMON, Client, Clients
from lab.gpu.mps import ControlDaemon
from lab.gpu.program import Recorder
from tests.eventually import eventually

from .live import Live, Played
from .process_exit import Watcher
from .stuck_server import remedies
from .trial import Part, Trial

STAGGER_SECONDS = 0.05
LEAD_SECONDS_A_CLIENT = 0.1
LEAD_SECONDS_A_FURTHER_GPU = 0.5
LATECOMER_AFTER = 0.25
# After the fault. A fault takes at most 0.3 s; a harmless trial must show that nothing happens.
AFTERMATH_SECONDS = 0.8
LINGER_LIMIT_SECONDS = 4
FAREWELL_SECONDS = 3
# The recorder collects five times a second.
TAIL_SECONDS = 0.45
REFUSED = 807
# An incident is final two seconds after its detection.
LAST_WORD_SECONDS = 3.5


class TrialRunner:
    """Run trials one after another, and clean up after each."""

    def __init__(self, directory: Path, load_program: Path, results: Path, *arguments: str) -> None:
        self._directory = directory
        self._load_program = load_program
        self._results = results
        self._arguments = arguments
        self._count = 0
        self._daemon: ControlDaemon | None = None
        self._live: dict[ControlDaemon, Live] = {}
        self._unsettled: list[Played] = []
        self._leaving: Recorder | None = None

    def play(self, trial: Trial) -> Mapping[str, Any]:
        """Run a trial, and return its truth, which is also written beside the recording."""
        self._count += 1
        if trial.limit is None:
            return self._play(trial, self._common_daemon())
        daemon = self._new_daemon()
        try:
            daemon.start()
            kind, value = trial.limit
            resource.prlimit(daemon.pid, kind, (value, value))
            return self._play(trial, daemon)
        finally:
            self._end(daemon)

    def close(self) -> None:
        """End the daemon and all other processes."""
        self._end_recorder()
        self._drop_daemon()
        self.write_answers()

    def write_answers(self) -> None:
        """Write the exporter's reports of trials that are final."""
        now = time.time()
        for played in [each for each in self._unsettled if now - each.end > LAST_WORD_SECONDS]:
            self._write_answer(played)

    def _write_answer(self, played: Played) -> None:
        self._write(f"{played.name}.live.json", json.dumps(played.reports(), indent=1) + "\n")
        self._unsettled.remove(played)

    def logs(self) -> list[Path]:
        """Return the logs of all daemons and of the exporters."""
        return sorted(
            file for shape in ("d*/log/*.log", "d*/*.log", "d*/*.jsonl") for file in self._directory.glob(shape)
        )

    def _play(self, trial: Trial, daemon: ControlDaemon) -> Mapping[str, Any]:
        recorder = Recorder(daemon, self._directory / f"{trial.name}.jsonl", *self._arguments)
        self._end_recorder()
        self._leaving = recorder
        if daemon not in self._live:
            self._live[daemon] = Live(daemon, *self._arguments)
        eventually(lambda: _assert_recording(recorder), within=20)
        run = TrialRun(trial, Clients(self._load_program, daemon, self._directory / trial.name), self._count)
        played = Played(trial.name, self._live[daemon])
        self._unsettled.append(played)
        try:
            run.run()
            time.sleep(TAIL_SECONDS)
        finally:
            recorder.interrupt_later()
            played.over()
            truth = run.end()
        self._write(f"{trial.name}.truth.json", json.dumps(truth, indent=1) + "\n")
        stuck = run.left_over or self._is_stuck(daemon, trial.name)
        if stuck and daemon is self._daemon:
            self._drop_daemon()
        return truth

    def _is_stuck(self, daemon: ControlDaemon, name: str) -> bool:
        """Return whether a server is in FAULT without clients. What ends this state is recorded."""
        observed = [attempt for server in daemon.servers() for attempt in remedies(daemon, server)]
        if observed:
            self._write(f"{name}.stuck.json", json.dumps(observed, indent=1) + "\n")
        return bool(observed)

    def _end_recorder(self) -> None:
        """Wait for the end of the previous recorder."""
        recorder, self._leaving = self._leaving, None
        if recorder is None:
            return
        recorder.child.wait()
        packed = self._results / f"{recorder.file.name}.gz"
        with recorder.file.open("rb") as plain, gzip.open(packed, "wb") as file:
            shutil.copyfileobj(plain, file)
        recorder.file.unlink()

    def _write(self, name: str, text: str) -> None:
        (self._results / name).write_text(text)

    def _common_daemon(self) -> ControlDaemon:
        if self._daemon is None:
            self._daemon = self._new_daemon()
            self._daemon.start()
            # With several GPUs, the start of the server takes longer than the clients have.
            first = Clients(self._load_program, self._daemon, self._daemon.directory / "first")
            first.start_ready("first", seconds=0)
            first.end()
        return self._daemon

    def _new_daemon(self) -> ControlDaemon:
        return ControlDaemon(self._directory / f"d{self._count}")

    def _drop_daemon(self) -> None:
        daemon, self._daemon = self._daemon, None
        if daemon is not None:
            self._end(daemon)

    def _end(self, daemon: ControlDaemon) -> None:
        """End a daemon, and its exporter after its last report."""
        live = self._live.pop(daemon, None)
        if live is not None:
            unsettled = [each for each in self._unsettled if each.live is live]
            time.sleep(max([0.0, *(each.end + LAST_WORD_SECONDS - time.time() for each in unsettled)]))
            for played in unsettled:
                self._write_answer(played)
            live.end()
        daemon.end()


class TrialRun:
    """One run of a trial."""

    def __init__(self, trial: Trial, clients: Clients, number: int) -> None:
        self.trial = trial
        self.left_over = False
        self._clients = clients
        self._watcher = Watcher(reaps_at_once=number % 2 == 0)
        self._parts: list[tuple[Part, Client]] = []
        self._latecomers: list[Client] = []
        self._happened: list[dict[str, Any]] = []
        self._moment = 0.0

    def run(self) -> None:
        """Run from the first client's start to the last one's end."""
        count = len(self.trial.parts)
        further = sum(len(part.gpus) - 1 for part in self.trial.parts)
        lead = self.trial.lead + further * LEAD_SECONDS_A_FURTHER_GPU
        self._moment = time.time() + lead + count * (LEAD_SECONDS_A_CLIENT + STAGGER_SECONDS)
        for part in self.trial.parts:
            self._parts.append((part, self._start(part)))
            time.sleep(STAGGER_SECONDS)
        self._kill()
        for _ in range(self.trial.latecomers):
            _sleep_until(self._moment + LATECOMER_AFTER)
            self._latecomers.append(self._start(Part(name="latecomer", options={"seconds": 1})))
        self._all_end_by(self._moment + AFTERMATH_SECONDS)
        if self.trial.facts.get("lingers"):
            self._all_end_by(self._moment + LINGER_LIMIT_SECONDS)
        for child in self._watcher.running():
            self._note("asked to leave", child.pid)
            child.terminate()
        self.left_over = not self._all_end_by(time.time() + FAREWELL_SECONDS)

    def end(self) -> Mapping[str, Any]:
        """End all processes, and return the truth."""
        self._clients.end()
        self._all_end_by(time.time() + FAREWELL_SECONDS)
        self._watcher.close()
        clients = [*(client for _, client in self._parts), *self._latecomers]
        return {
            "scenario": self.trial.name,
            "kind": self.trial.kind,
            "facts": dict(self.trial.facts),
            "kernel": platform.release(),
            "moment": round(self._moment, 6),
            "clients": {str(client.pid): self._truth_of(client) for client in clients},
            "happened": self._happened,
            "cause": next((client.pid for part, client in self._parts if part.name == self.trial.cause), None),
            "fault_kind": self.trial.kind,
            "also_culprits": [client.pid for part, client in self._parts if part.name in self.trial.also_culprits],
            "victims": [client.pid for part, client in self._parts if self._is_victim(part, client)],
            "leavers": [client.pid for part, client in self._parts if part.leaves is not None],
            "refused": [client.pid for client in clients if REFUSED in client.error_codes],
            "blocking": [client.pid for _, client in self._parts if self._lingered(client)],
            "left_over": self.left_over,
        }

    def _start(self, part: Part) -> Client:
        environment = {**part.environment, **(NO_DAEMON if part.bypasses else {})}
        client = self._clients.start(
            part.name, environment=environment or None, command=part.command, **part.timed(self._moment)
        )
        self._watcher.watch(client.child)
        return client

    def _kill(self) -> None:
        for part, client in self._parts:
            if part.killed is not None:
                _sleep_until(self._moment + part.killed)
                client.child.send(part.by)
                self._note(part.by.name, client.pid)

    def _note(self, what: str, pid: int) -> None:
        self._happened.append({"at": round(time.time(), 6), "what": what, "pid": pid})

    def _all_end_by(self, deadline: float) -> bool:
        while self._watcher.running() and time.time() < deadline:
            time.sleep(0.02)
        return not self._watcher.running()

    def _is_victim(self, part: Part, client: Client) -> bool:
        causes = {self.trial.cause, *self.trial.also_culprits}
        return bool(client.error_codes) and part.name not in causes and REFUSED not in client.error_codes

    def _lingered(self, client: Client) -> bool:
        """Return whether the client had an error and continued for a while."""
        ended = self._watcher.ended(client.pid)
        errors = client.events("error")
        return bool(errors) and ended is not None and ended - errors[0]["at"] > AFTERMATH_SECONDS

    def _truth_of(self, client: Client) -> dict[str, Any]:
        bypasses = any(part.bypasses for part, each in self._parts if each is client)
        return {**client.truth(), "bypasses": bypasses, "exited_at": self._watcher.ended(client.pid)}


def _assert_recording(recorder: Recorder) -> None:
    assert '"source"' in recorder.text(), recorder.evidence()


def _sleep_until(time_of_day: float) -> None:
    time.sleep(max(0, time_of_day - time.time()))
