"""Whom the kernel killed for want of memory: in its words alone, and whatever the process calls itself."""

import pytest

from exporter.parse.kernel_log import parse_oom_kill

MEMORY = "total-vm:17300kB, anon-rss:8192kB, file-rss:4kB, shmem-rss:0kB, UID:1000 pgtables:72kB oom_score_adj:0"
CAUSES = ("Out of memory", "Memory cgroup out of memory", "Out of memory (oom_kill_allocating_task)")


@pytest.mark.parametrize("cause", CAUSES)
def test_whichever_memory_was_short(cause: str) -> None:
    assert parse_oom_kill(f"{cause}: Killed process 4711 (train) {MEMORY}") == 4711


@pytest.mark.parametrize("name", ["", ") total-vm", "a b", "Killed process ", "x): Killed process 1 (", "\\x0a", "\n"])
def test_no_name_changes_whom(name: str) -> None:
    assert parse_oom_kill(f"Out of memory: Killed process 4711 ({name}) {MEMORY}") == 4711


@pytest.mark.parametrize(
    "message",
    [
        "",
        "Out of memory: Killed process -1 (x)",
        "Out of memory: Killed process ٤ (x)",
        "Out of memory: Killed process 99999999999 (x)",
        "Out of memory: Kill process 4711 (train) score 900 or sacrifice child",
        "Memory cgroup out of memory: OOM victim 4711 (train) is already exiting. Skip killing the task",
        "oom_reaper: reaped process 4711 (train), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=train,pid=4711,uid=1000",
        "python3: Out of memory: Killed process 4711 (train)",
        " Out of memory: Killed process 4711 (train)",
    ],
)
def test_what_says_nothing_of_a_kill_is_none(message: str) -> None:
    assert parse_oom_kill(message) is None


def test_a_crash_of_a_process_that_is_named_like_one_is_none() -> None:
    """The kernel begins the message of a crash with the name, of which it keeps 15 characters: they do not suffice."""
    for cause in CAUSES:
        name = f"{cause}: Killed process 4711 ("[:15]
        assert (
            parse_oom_kill(f"{name}[1234]: segfault at 0 ip 0000000000000000 sp 00007ffd error 14 in python3") is None
        )
