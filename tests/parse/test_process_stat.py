"""/proc/PID/stat: the start time and how it ended, past a name that may hold anything."""

import pytest

from exporter.parse import proc

FIELDS = "S 1 513 513 0 -1 4194560 1234 0 0 0 7 3 0 0 20 0 4 0 88123456 1073741824 2048 18446744073709551615"


@pytest.mark.parametrize(
    "name",
    ["train.py", "", "a b", "a) b", ") Z 1 (", "(((", ")))", "line\nbreak", "\udcff", "1 2 3 4 5 6 7 8 9 10 11 12 13"],
)
def test_the_start_time_is_found_past_any_name(name: str) -> None:
    text = f"513 ({name}) {FIELDS}\n"
    assert proc.start_ticks(text) == 88123456
    assert not proc.is_zombie(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "513",
        "513 (train.py)",
        "513 (train.py) S 1 513",
        f"513 train.py {FIELDS}",
        ") " + "x " * 30,
        ") " + "² " * 30,
    ],
)
def test_text_of_another_form_has_none(text: str) -> None:
    assert proc.start_ticks(text) is None


@pytest.mark.parametrize(("state", "zombie"), [("Z", True), ("X", True), ("S", False), ("R", False), ("D", False)])
def test_a_process_that_only_waits_for_its_parent_is_a_zombie(state: str, zombie: bool) -> None:
    assert proc.is_zombie(f"513 (Z) {state}{FIELDS[1:]}") is zombie


@pytest.mark.parametrize("name", ["train.py", "", ") Z 1 (", "a) T 2 (b"])
def test_its_state_and_parent_are_found_past_any_name(name: str) -> None:
    text = f"513 ({name}) {FIELDS}\n"
    assert (proc.process_state(text), proc.parent_pid(text)) == ("S", 1)


@pytest.mark.parametrize("text", ["", "513", "513 (train.py)", f"513 train.py {FIELDS}", "513 (train.py) 12 1"])
def test_text_of_another_form_has_no_state(text: str) -> None:
    assert proc.process_state(text) is None


def remains(status: int, *, flags: int = 0x40800C, state: str = "Z", name: str = "train.py") -> str:
    """What is left of a process that has ended, as Linux 6.18 gave it."""
    behind = "0 0 0 20 0 1 0 88123456 " + "0 " * 29
    return f"513 ({name}) {state} 1 513 513 0 -1 {flags} 0 0 0 0 0 {behind}{status}\n"


SIGNALED = 0x40840C


@pytest.mark.parametrize("name", ["train.py", "", ") Z 1 (", "1 2 3 4 5 6 7 8 9 10 11 12 13"])
@pytest.mark.parametrize(("status", "flags"), [(0, 0x40800C), (1792, 0x40800C), (9, SIGNALED), (11, SIGNALED)])
def test_how_it_ended_is_found_past_any_name(status: int, flags: int, name: str) -> None:
    text = remains(status, flags=flags, name=name)

    assert proc.wait_status(text) == status
    assert proc.start_ticks(text) == 88123456


def test_what_a_signal_ended_did_not_end_with_0() -> None:
    """That is what it says to those who may not know."""
    assert proc.wait_status(remains(0, flags=SIGNALED)) is None


@pytest.mark.parametrize("text", ["", remains(9, state="S"), remains(-1), f"513 (x) Z {FIELDS[1:]}"])
def test_what_has_not_ended_or_is_of_another_form_tells_nothing(text: str) -> None:
    assert proc.wait_status(text) is None


@pytest.mark.parametrize(
    ("span", "found"),
    [("4096 8192", (4096, 8192)), ("0 0", None), ("8192 4096", None), ("4096", None), ("4096 -1", None)],
)
def test_where_the_environment_lies_is_told_to_who_may_know(span: str, found: tuple[int, int] | None) -> None:
    text = f"513 (a) b) {FIELDS} " + "0 " * 24 + span + "\n"
    assert proc.environment_addresses(text) == found
