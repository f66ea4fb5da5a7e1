"""What the driver says of its GPUs, in every form that is known; and no process' name says anything."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.parse.kernel_log import Xid, parse_bus_id, parse_gpu_address, parse_xid
from exporter.parse.printable import LONGEST_TEXT, printable
from exporter.parse.xid_catalogue import XIDS, XidClass, exonerates, xid_meaning
from tests.builders import RECORDINGS, Recorded

MMU_FAULT = "intr 00000000. MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_0 faulted @ 0x7f00_00000000."

FORMS = {
    f"NVRM: Xid (PCI:0000:00:06): 31, pid=471, name=c_two, channel 0x0000001d, {MMU_FAULT}": Xid(
        number=31, bus_id="0000:00:06", pid=471, name="c_two", text=f"channel 0x0000001d, {MMU_FAULT}"
    ),
    "NVRM: Xid (PCI:0000:00:06): 43, pid=456, name=nvidia-cuda-mps, channel 0x0000000a": Xid(
        number=43, bus_id="0000:00:06", pid=456, name="nvidia-cuda-mps", text="channel 0x0000000a"
    ),
    "NVRM: Xid (PCI:0000:2a:00): 13, Graphics SM Warp Exception on (GPC 0, TPC 0, SM 0): Out Of Range Address": Xid(
        number=13,
        bus_id="0000:2a:00",
        text="Graphics SM Warp Exception on (GPC 0, TPC 0, SM 0): Out Of Range Address",
    ),
    "NVRM: Xid (PCI:0000:0a:00): 45, pid='<unknown>', name=<unknown>, Ch 00000008": Xid(
        number=45, bus_id="0000:0a:00", text="Ch 00000008"
    ),
    "NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149": Xid(
        number=45, bus_id="0000:dc:00", pid=1818990, name="python3", text="Ch 00000001 caused by previous Xid 149"
    ),
    "NVRM: Xid (PCI:0000:05:00): 32, pid=1234, Ch 00000010 intr 00040000": Xid(
        number=32, bus_id="0000:05:00", pid=1234, text="Ch 00000010 intr 00040000"
    ),
    "NVRM: Xid (PCI:0000:01:00): 94, pid=7062, Contained: CE User Channel (0x9). RST: No, D-RST: No": Xid(
        number=94, bus_id="0000:01:00", pid=7062, text="Contained: CE User Channel (0x9). RST: No, D-RST: No"
    ),
    "NVRM: Xid (PCI:0000:01:00): 95, pid=7062, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No": Xid(
        number=95, bus_id="0000:01:00", pid=7062, text="Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No"
    ),
    "NVRM: Xid (PCI:0000:65:00): 64, pid='N/A', Row Remapper: Failed to remap row": Xid(
        number=64, bus_id="0000:65:00", text="Row Remapper: Failed to remap row"
    ),
    "NVRM: Xid (PCI:0000:07:00 GPU-I:05): 43, pid=9, name=train, channel 0x00000002": Xid(
        number=43, bus_id="0000:07:00", pid=9, name="train", gpu_instance=5, text="channel 0x00000002"
    ),
    "NVRM: Xid (PCI:0000:07:00 GPU-I:05 GPU-CI:00): 13, Graphics Exception: ESR 0x504730=0x20": Xid(
        number=13,
        bus_id="0000:07:00",
        gpu_instance=5,
        compute_instance=0,
        text="Graphics Exception: ESR 0x504730=0x20",
    ),
    "NVRM: Xid (0000:03:00): 14, Channel 00000001": Xid(number=14, bus_id="0000:03:00", text="Channel 00000001"),
    "NVRM: Xid (PCI:10000:E1:00): 79, GPU has fallen off the bus.": Xid(
        number=79, bus_id="10000:e1:00", text="GPU has fallen off the bus."
    ),
    "NVRM: Xid (PCI:0000:00:06): 79, ": Xid(number=79, bus_id="0000:00:06"),
    "NVRM: Xid (PCI:0000:00:06): 79": Xid(number=79, bus_id="0000:00:06"),
    "NVRM: Xid (PCI:0000:00:06): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)": Xid(
        number=154,
        bus_id="0000:00:06",
        text="GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
    ),
}


@pytest.mark.parametrize("message", FORMS)
def test_every_form(message: str) -> None:
    assert parse_xid(message) == FORMS[message]


@pytest.mark.parametrize("recorded", RECORDINGS, ids=repr)
def test_every_xid_in_a_recording_is_read(recorded: Recorded) -> None:
    told = [seen["record"].partition(";")[2] for seen in recorded.raw if seen["source"] == "kernel"]

    assert [message for message in told if ("Xid" in message) != (parse_xid(message) is not None)] == []


@pytest.mark.parametrize(
    "message",
    [
        "",
        "NVRM: GPU Board Serial Number: 0",
        "NVRM: The NVIDIA GPU 0000:01:00.0 has fallen off the bus.",
        " NVRM: Xid (PCI:0000:00:06): 79",
        "python3: NVRM: Xid (PCI:0000:00:06): 79",
        "NVRM: Xid (PCI:0000:00:06: 79, x",
        "NVRM: Xid (PCI:0000:00:06): 7x, y",
        "NVRM: Xid (PCI:0000:00:06): 123456, y",
        "NVRM: Xid (PCI:0000:00:٠٦): 79, x",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO",
    ],
)
def test_what_is_no_xid_is_none(message: str) -> None:
    assert parse_xid(message) is None


def test_a_crash_of_a_process_that_is_named_like_an_xid_is_none() -> None:
    """The kernel begins the message of a crash with the name, of which it keeps 15 characters: they do not suffice."""
    name = "NVRM: Xid (PCI:0000:00:06): 79"[:15]

    assert parse_xid(f"{name}[1234]: segfault at 0 ip 0000000000000000 sp 00007ffd error 14 in python3") is None


@pytest.mark.parametrize(
    "name",
    [
        ", pid=1, name=x",
        ", Ch 00000001",
        "): 79, pid=1",
        "a, b, c",
        "NVRM: Xid (PCI:",
        "\\x0aNVRM: Xid (PCI:0000:00:07): 79, pid=1, name=x",
        "\nNVRM: Xid (PCI:0000:00:07): 79",
        "'<unknown>'",
        "",
        "ü" * 15,
    ],
)
def test_a_name_tells_of_nothing_but_itself(name: str) -> None:
    read = parse_xid(f"NVRM: Xid (PCI:0000:00:06): 31, pid=600, name={name}, channel 0x0000001d, {MMU_FAULT}")

    assert read is not None
    assert (read.number, read.bus_id, read.pid) == (31, "0000:00:06", 600)
    assert read.name is not None
    assert printable(name).startswith(read.name)


@given(st.text(max_size=600))
@settings(max_examples=200)
def test_no_name_hides_the_xid_or_changes_it(name: str) -> None:
    read = parse_xid(f"NVRM: Xid (PCI:0000:00:06): 31, pid=600, name={name}, channel 0x0000001d")

    assert read is not None
    assert (read.number, read.bus_id, read.pid) == (31, "0000:00:06", 600)
    assert read.name is None or (read.name.isprintable() and len(read.name) <= LONGEST_TEXT)


pieces = st.sampled_from(
    (
        "NVRM: Xid (",
        "NVRM: GPU at ",
        "PCI:",
        "0000:00:06",
        " GPU-I:1",
        "): ",
        "31",
        ", ",
        "pid=",
        "name=",
        "'",
        "9" * 50,
    )
)


@given(st.text() | st.lists(pieces, max_size=12).map("".join))
@settings(max_examples=200)
def test_no_text_makes_it_raise(text: str) -> None:
    parse_xid(text)
    parse_gpu_address(text)
    parse_bus_id(text)


@pytest.mark.parametrize("filler", [", ", ", name=", ", pid=1", "'", "0"])
def test_no_message_takes_long(filler: str) -> None:
    """A search whose steps grow with the square of the length would outlast the time limit of a test by far."""
    parse_xid(f"NVRM: Xid (PCI:0000:00:06): 31, pid=1, name={filler * 1_000_000}\0")


def test_the_driver_says_which_gpu_is_where() -> None:
    uuid = "GPU-22cc6aea-2c9e-48a9-4c41-c6bac08fa8c1"

    assert parse_gpu_address(f"NVRM: GPU at PCI:0000:00:06: {uuid}") == ("0000:00:06", uuid)
    assert parse_gpu_address(f"NVRM: GPU at 0000:00:06: {uuid}") == ("0000:00:06", uuid)
    assert parse_gpu_address("NVRM: GPU at PCI:0000:00:06: GPU-1") is None
    assert parse_gpu_address(f"NVRM: GPU at PCI:0000:00:06: {uuid}, and more") is None


def test_bus_ids_of_all_origins_are_comparable() -> None:
    forms = ("PCI:0000:0A:06", "0000:0a:06", "0000:0A:06.0", "00000000:0A:06.0", "PCI:0000:0a:06.0")

    assert {parse_bus_id(form) for form in forms} == {"0000:0a:06"}
    assert parse_bus_id("00010000:e1:00.0") == "10000:e1:00"
    assert {parse_bus_id(none) for none in ("", "N/A", "0a:06.0", "0000:0a:06.0 ", "0000:0a")} == {None}


def test_the_catalogue_knows_what_an_operator_asks_for_first() -> None:
    assert {13, 31, 43, 45, 48, 63, 64, 74, 79, 94, 95, 119, 154} <= set(XIDS)
    fallen = xid_meaning(79)
    assert fallen is not None
    assert (fallen.action, fallen.kind) == ("RESTART_BM", XidClass.HARDWARE)
    assert xid_meaning(999) is None
    assert all(each.mnemonic and each.meaning for each in XIDS.values())


@pytest.mark.parametrize(
    "number",
    [46, 48, 62, 63, 64, 74, 79, 94, 95, 110, 119, 120, 136, 140, 143, 144, 149, 150, 156, 158, 171, 172],
)
def test_hardware_links_and_the_driver_exonerate_every_process(number: int) -> None:
    assert exonerates(number)


@pytest.mark.parametrize("number", [11, 13, 25, 31, 39, 43, 45, 68, 69, 137])
def test_what_a_program_may_have_done_exonerates_nobody(number: int) -> None:
    """An illegal address, an exception, a channel that was reset after one, a peer's memory."""
    assert not exonerates(number)


@pytest.mark.parametrize("number", [8, 32, 44, 66, 109])
def test_nor_does_what_may_be_either(number: int) -> None:
    """A corrupted push buffer: a bus, or a program. A context that never switches: hardware, or an endless kernel."""
    assert not exonerates(number)


@pytest.mark.parametrize("number", [78, 92, 121, 154, 155])
def test_nor_does_what_ends_nobodys_work(number: int) -> None:
    assert not exonerates(number)


@pytest.mark.parametrize("number", [0, 14, 174, 999, 99999, -1])
def test_a_number_that_nobody_knows_says_nothing_of_guilt(number: int) -> None:
    assert not exonerates(number)


def test_whatever_exonerates_is_of_a_kind_that_no_program_makes() -> None:
    kinds = {XIDS[number].kind for number in XIDS if exonerates(number)}

    assert kinds == {XidClass.HARDWARE, XidClass.LINK, XidClass.DRIVER}
