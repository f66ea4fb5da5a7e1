"""What is recorded: events on streams, by which a client may wait, and launches into graphs."""

from exporter.sources.doors.counting import KEY, PROCESS, RECORD, Counting
from exporter.sources.doors.instructions import FRAME
from exporter.sources.doors.layout import AT
from exporter.sources.doors.maps import EVENTS, PROCESSES


def capture(code: Counting, *, begins: bool) -> None:
    """A capture begins, or ends: what is launched in between does not run."""
    code.process_key()
    code.now()
    code.process(make=begins)
    if begins:
        code.counted(AT["captures"])
    else:
        code.set(8, 0)
    code.store(6, AT["capturing"], 8)


def record(code: Counting) -> None:
    """An event is recorded: whoever waits for it waits for what its stream has now."""
    code.move(6, 1)
    code.argument(7, 0)
    code.argument(9, 1)
    code.process_key()
    code.stream_key(9)
    code.now()
    code.lookup(PROCESSES, PROCESS)
    code.jump_if_is(0, 0, "out")
    code.set(1, 1)
    code.add_in_memory(0, AT["records"], 1)
    code.two_number_key(7)
    code.store(FRAME, RECORD, 9)
    code.store(FRAME, RECORD + 8, 8)
    code.put(EVENTS, KEY, RECORD)
