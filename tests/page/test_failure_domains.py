"""Who falls together."""

from dataclasses import replace

from exporter.page.gpus import failure_domains
from exporter.report.status_view import status_view
from tests.page.scenes import busy, full, sight


def test_clients_stand_on_their_gpus_and_who_is_on_both_joins_them() -> None:
    (box,) = failure_domains(status_view(busy())).boxes
    assert (box.letter, box.clients, box.gpus) == ("A", "3 clients", "GPUs 0 and 1")
    assert [(each.name, [who.pid for who in each.chips]) for each in box.columns] == [
        ("GPU 0", ["601"]),
        ("GPU 1", ["602"]),
    ]
    assert [(each.process.pid, each.before, each.span, each.after) for each in box.bridges] == [("600", 0, 2, 0)]


def test_of_many_the_first_are_named() -> None:
    found = failure_domains(status_view(full(gpus=2)))
    assert [(len(box.columns[0].chips), box.columns[0].more) for box in found.boxes] == [(6, 42), (6, 42)]
    assert (found.alone, found.unknown) == (0, 0)


def test_who_is_alone_has_no_box() -> None:
    assert failure_domains(status_view(full(gpus=2, clients=1))).alone == 2
    assert failure_domains(status_view(full(gpus=2, clients=1))).boxes == ()


def test_nobody_is_put_into_a_box_of_whom_it_is_not_known_where_he_is() -> None:
    unseen = replace(busy().node, gpus={})
    found = failure_domains(status_view(sight(unseen)))
    assert (found.boxes, found.alone, found.unknown) == ((), 0, 3)
