"""Who a process is, in a few words."""

from exporter.model.node import Node
from exporter.report.status_view import process_label
from tests.builders import owned
from tests.page.inputs import hostile


def test_has_a_workload_other_than_the_user() -> None:
    present = owned()
    assert process_label(present, 600).workload == "pod train-0"
    assert process_label(present, 602).workload == "job 42"
    assert (process_label(present, 606).name, process_label(present, 606).workload) == ("train.py", "")


def test_an_unknown_process_has_only_a_pid() -> None:
    assert (process_label(Node(), 7).name, process_label(Node(), 7).pid, process_label(Node(), -7).pid) == (
        "unknown",
        "7",
        "?",
    )


def test_hostile_names_are_short_and_printable() -> None:
    shown = hostile().node
    assert all(len(process_label(shown, pid).command) <= 32 for pid in shown.processes)
    assert all(process_label(shown, pid).command.isprintable() for pid in shown.processes)
