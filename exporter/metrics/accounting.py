"""Families of the accounts: who has used how much of each GPU, for good, and who uses it now."""

from collections import defaultdict
from collections.abc import Callable, Iterable

from exporter.core.attribution.minute import fresh_splits
from exporter.core.support import GPM
from exporter.metrics.family import Labels, Samples, counter, gauge
from exporter.model.ledger import Book, Entry, Payer, Purse, Used
from exporter.model.observation import GpuUuid
from exporter.model.split import Share
from exporter.parse.printable import printable
from exporter.view import View

PURSES = {Purse.SERVER: "mps_server", Purse.OTHERS: "others", Purse.UNATTRIBUTED: "unattributed"}
"""What stands for the kind of owner where there is none."""

PARTS_OF_A_SECOND, PARTS_OF_A_JOULE = 1_000_000, 1000
BYTE_MILLISECONDS = 1000


def _payer(payer: Payer) -> Labels:
    """Names that look the same once they can be shown are one owner, since no two series may."""
    return (PURSES[payer], "") if isinstance(payer, Purse) else (payer.kind, printable(payer.name))


def _method(entry: Entry) -> str:
    _, method = entry
    return "" if method is None else method.value


def _summed(amounts: Iterable[tuple[Labels, int]], per: int) -> Samples:
    """Added up while they are whole numbers."""
    totals: defaultdict[Labels, int] = defaultdict(int)
    for labels, amount in amounts:
        totals[labels] += amount
    return ((labels, amount / per) for labels, amount in totals.items())


def _all_books(view: View) -> Iterable[tuple[GpuUuid, Book]]:
    return view.books()


def _sm_books(view: View) -> Iterable[tuple[GpuUuid, Book]]:
    """Return the books of the GPUs whose SM time is known.

    GPM alone measures SM time. What an earlier version counted on a GPU without GPM was the time with any kernel
    running, so it is not reported.
    """
    for uuid, book in view.books():
        gpu = view.node.gpus.get(uuid)
        measured = None if gpu is None else gpu.supported.get(GPM, gpu.reading.gpm_supported)
        if measured or (measured is None and book.whole.sm_us):
            yield uuid, book


Books = Callable[[View], Iterable[tuple[GpuUuid, Book]]]


def _used(of: Callable[[Used], int], per: int, books: Books = _all_books) -> Callable[[View], Samples]:
    """What each owner that has a page in the books has used, by method."""

    def samples(view: View) -> Samples:
        lines = ((gpu, entry, of(used)) for gpu, book in books(view) for entry, used in book.used.items())
        shown = (each for each in lines if each[1][0] is not Purse.CLOSED)
        return _summed((((gpu, *_payer(entry[0]), _method(entry)), amount) for gpu, entry, amount in shown), per)

    return samples


def _closed(of: Callable[[Used], int], per: int, books: Books = _all_books) -> Callable[[View], Samples]:
    """What stands on pages that were closed."""

    def samples(view: View) -> Samples:
        for gpu, book in books(view):
            closed = (of(used) for (payer, _), used in book.used.items() if payer is Purse.CLOSED)
            yield (gpu,), sum(closed) / per

    return samples


def _whole(of: Callable[[Book], int], per: int, books: Books = _all_books) -> Callable[[View], Samples]:
    return lambda view: (((gpu,), of(book) / per) for gpu, book in books(view))


def _memory(view: View) -> Samples:
    held = ((gpu, *line) for gpu, book in view.books() for line in book.memory_byte_ms.items())
    shown = (((gpu, *_payer(payer)), amount) for gpu, payer, amount in held if payer is not Purse.CLOSED)
    return _summed(shown, BYTE_MILLISECONDS)


def _shares(view: View) -> Iterable[tuple[str, str, GpuUuid, Share]]:
    splits = fresh_splits(view.node)
    for daemon, client, client_id in view.clients():
        for gpu, split in splits.items():
            if client.pid in split.shares:
                yield daemon.name, client_id, gpu, split.shares[client.pid]


FAMILIES = (
    counter(
        "cuda_mps_workload_sm_seconds_total",
        ("gpu", "workload_kind", "workload", "method"),
        "SM time of the owner's processes, in seconds of the whole GPU: 1 is all of its SMs busy for a second. By "
        "method. The kinds mps_server, others and unattributed have no owner. An owner's series ends a day after its "
        "last use. Absent if the GPU has no GPM.",
        _used(lambda used: used.sm_us, PARTS_OF_A_SECOND, _sm_books),
    ),
    counter(
        "cuda_mps_workload_energy_joules_total",
        ("gpu", "workload_kind", "workload", "method"),
        "Energy of an owner's processes: the GPU's own, between two readings in proportion to the SM time; "
        "unattributed if no process ran, or if the GPU has no GPM.",
        _used(lambda used: used.energy_mj, PARTS_OF_A_JOULE),
    ),
    counter(
        "cuda_mps_workload_memory_byte_seconds_total",
        ("gpu", "workload_kind", "workload"),
        "GPU memory that an owner's processes have held, times how long: 3.6e12 is a gigabyte for an hour.",
        _memory,
    ),
    counter(
        "cuda_mps_gpu_sm_seconds_total",
        ("gpu",),
        "SM time of the GPU, in seconds of all its SMs: the sum of the owners' and of the closed series. Absent if the "
        "GPU has no GPM.",
        _whole(lambda book: book.whole.sm_us, PARTS_OF_A_SECOND, _sm_books),
    ),
    counter(
        "cuda_mps_gpu_accounted_energy_joules_total",
        ("gpu",),
        "Energy of the GPU while it was watched: what the owners' and what the closed series say, together.",
        _whole(lambda book: book.whole.energy_mj, PARTS_OF_A_JOULE),
    ),
    counter(
        "cuda_mps_gpu_closed_sm_seconds_total",
        ("gpu",),
        "SM time of owners whose series have ended. Absent if the GPU has no GPM.",
        _closed(lambda used: used.sm_us, PARTS_OF_A_SECOND, _sm_books),
    ),
    counter(
        "cuda_mps_gpu_closed_energy_joules_total",
        ("gpu",),
        "Energy of owners whose series have ended; it was told by these before.",
        _closed(lambda used: used.energy_mj, PARTS_OF_A_JOULE),
    ),
    gauge(
        "cuda_mps_client_sm_utilization_ratio",
        ("daemon", "client", "gpu", "method"),
        "Part of the GPU's SMs that the client kept busy in the last minute, by method. Absent if it is unknown.",
        lambda view: (((*who, share.method), share.sm) for *who, share in _shares(view)),
    ),
    gauge(
        "cuda_mps_client_sm_utilization_error_ratio",
        ("daemon", "client", "gpu"),
        "One standard error of that part; it covers the time for which the client's part is unknown.",
        lambda view: ((tuple(who), share.error) for *who, share in _shares(view)),
    ),
    gauge(
        "cuda_mps_gpu_sm_unattributed_ratio",
        ("gpu",),
        "Part of the GPU's SMs that was busy in the last minute and could not be attributed to a process. Absent if "
        "the GPU has no GPM.",
        lambda view: (((gpu,), split.unattributed) for gpu, split in fresh_splits(view.node).items()),
    ),
)
