"""Who a process is, in a few words."""

from exporter.model.node import Node
from exporter.report.identity import who
from tests.builders import owned
from tests.page.scenes import hostile


def test_its_owner_is_there_where_that_is_more_than_its_user() -> None:
    present = owned()
    assert who(present, 600).owner == "pod train-0"
    assert who(present, 602).owner == "job 42"
    assert (who(present, 606).name, who(present, 606).owner) == ("train.py", "")


def test_one_of_whom_nothing_is_known_has_no_name_but_a_pid() -> None:
    assert (who(Node(), 7).name, who(Node(), 7).pid, who(Node(), -7).pid) == ("unknown", "7", "?")


def test_however_long_and_strange_a_name_is_it_is_short_and_can_be_shown() -> None:
    shown = hostile().node
    assert all(len(who(shown, pid).command) <= 32 for pid in shown.processes)
    assert all(who(shown, pid).command.isprintable() for pid in shown.processes)
