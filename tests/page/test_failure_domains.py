"""Who falls together."""

from dataclasses import replace

from exporter.page.cards import failure_domains
from exporter.report.status_view import status_view
from tests.page.scenes import busy, full, status_input


def test_clients_are_in_the_column_of_their_gpu_and_bridges_join_gpus() -> None:
    (box,) = failure_domains(status_view(busy())).boxes
    assert (box.letter, box.clients, box.gpus) == ("A", "3 clients", "GPUs 0 and 1")
    assert [(each.name, [who.pid for who in each.chips]) for each in box.columns] == [
        ("GPU 0", ["601"]),
        ("GPU 1", ["602"]),
    ]
    assert [(each.process.pid, each.before, each.span, each.after) for each in box.bridges] == [("600", 0, 2, 0)]


def test_names_the_first_of_many() -> None:
    found = failure_domains(status_view(full(gpus=2)))
    assert [(len(box.columns[0].chips), box.columns[0].more) for box in found.boxes] == [(6, 42), (6, 42)]
    assert (found.alone, found.unknown) == (0, 0)


def test_a_single_client_has_no_box() -> None:
    assert failure_domains(status_view(full(gpus=2, clients=1))).alone == 2
    assert failure_domains(status_view(full(gpus=2, clients=1))).boxes == ()


def test_a_client_on_unknown_gpus_is_in_no_box() -> None:
    unseen = replace(busy().node, gpus={})
    found = failure_domains(status_view(status_input(unseen)))
    assert (found.boxes, found.alone, found.unknown) == ((), 0, 3)
