"""/proc/PID/stat: the start time, past a name that may hold anything."""

import pytest

from exporter.parse import process_stat

FIELDS = "S 1 513 513 0 -1 4194560 1234 0 0 0 7 3 0 0 20 0 4 0 88123456 1073741824 2048 18446744073709551615"


@pytest.mark.parametrize(
    "name",
    ["train.py", "", "a b", "a) b", ") Z 1 (", "(((", ")))", "line\nbreak", "\udcff", "1 2 3 4 5 6 7 8 9 10 11 12 13"],
)
def test_the_start_time_is_found_past_any_name(name: str) -> None:
    text = f"513 ({name}) {FIELDS}\n"
    assert process_stat.start_ticks(text) == 88123456
    assert not process_stat.is_zombie(text)


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
    assert process_stat.start_ticks(text) is None


@pytest.mark.parametrize(("state", "zombie"), [("Z", True), ("X", True), ("S", False), ("R", False), ("D", False)])
def test_a_process_that_only_waits_for_its_parent_is_a_zombie(state: str, zombie: bool) -> None:
    assert process_stat.is_zombie(f"513 (Z) {state}{FIELDS[1:]}") is zombie
