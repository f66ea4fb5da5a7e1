"""Records of the kernel log. Only the kernel's own records count, and no process name changes them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.model.incident import AccessKind, FailedAccess
from exporter.parse.kernel_log import (
    XIDS,
    Xid,
    XidClass,
    exonerates,
    parse_bus_id,
    parse_failed_access,
    parse_gpu_address,
    parse_kernel_record,
    parse_lost_gpu,
    parse_oom_kill,
    parse_xid,
)
from exporter.parse.printable import LONGEST_TEXT, printable

XID = "NVRM: Xid (PCI:0000:00:06): 43, pid=456, name=nvidia-cuda-mps, channel 0x0000000a"


def test_parses_a_record_of_the_kernel() -> None:
    assert parse_kernel_record(f"4,360,27859548,c;{XID}") == XID


def test_ignores_flags_and_later_fields(subtests: pytest.Subtests) -> None:
    for flags in ["-", "c", "+", "-,caller=T1234", "c,caller=C3"]:
        with subtests.test(flags=flags):
            read = parse_kernel_record(f"3,7,9,{flags};text; with, separators")

            assert read == "text; with, separators"


def test_ignores_the_dictionary_after_the_text() -> None:
    read = parse_kernel_record("6,1,2,-;text\n SUBSYSTEM=pci\n DEVICE=+pci:0000:00:06.0\n")

    assert read == "text"


def test_only_facility_0_is_by_the_kernel() -> None:
    """A process that writes to /dev/kmsg gets facility 1, or the facility of its prefix, but never 0."""
    by = {prefix: parse_kernel_record(f"{prefix},1,2,-;{XID}") for prefix in (0, 4, 7, 8, 12, 30, 8 * 23 + 4)}

    assert [prefix for prefix, read in by.items() if read is not None] == [0, 4, 7]


def test_a_text_of_another_form_is_no_record(subtests: pytest.Subtests) -> None:
    for text in [
        "",
        ";",
        XID,
        f"4;{XID}",
        "4,5,6,-",
        "four,5,6,-;text",
        "4,5,6;text",
        "٤,5,6,-;text",
        " SUBSYSTEM=pci",
        "\n4,5,6,-;x",
    ]:
        with subtests.test(text=text):
            assert parse_kernel_record(text) is None


@given(st.text() | st.builds("{},{},{},{};{}".format, *[st.integers() | st.text(max_size=5)] * 5))
@settings(max_examples=200)
def test_any_text_parses_as_a_kernel_record(text: str) -> None:
    read = parse_kernel_record(text)

    assert read is None or "\n" not in read


MEMORY = "total-vm:17300kB, anon-rss:8192kB, file-rss:4kB, shmem-rss:0kB, UID:1000 pgtables:72kB oom_score_adj:0"
CAUSES = ("Out of memory", "Memory cgroup out of memory", "Out of memory (oom_kill_allocating_task)")


def test_returns_the_killed_process_for_each_cause_and_any_name(subtests: pytest.Subtests) -> None:
    for cause in CAUSES:
        for name in ["train", "", ") total-vm", "a b", "Killed process ", "x): Killed process 1 (", "\\x0a", "\n"]:
            with subtests.test(cause=cause, name=name):
                assert parse_oom_kill(f"{cause}: Killed process 4711 ({name}) {MEMORY}") == 4711


def test_other_messages_are_no_oom_kill(subtests: pytest.Subtests) -> None:
    for message in [
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
    ]:
        with subtests.test(message=message):
            assert parse_oom_kill(message) is None


def test_a_crash_of_a_process_named_like_an_oom_kill_is_none() -> None:
    """The message of a crash begins with the process name, truncated to 15 characters: too few to forge a message."""
    for cause in CAUSES:
        name = f"{cause}: Killed process 4711 ("[:15]
        assert (
            parse_oom_kill(f"{name}[1234]: segfault at 0 ip 0000000000000000 sp 00007ffd error 14 in python3") is None
        )


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


def test_parses_every_form_of_an_xid(subtests: pytest.Subtests) -> None:
    for message in FORMS:
        with subtests.test(message=message):
            assert parse_xid(message) == FORMS[message]


def test_other_messages_are_no_xid(subtests: pytest.Subtests) -> None:
    for message in [
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
    ]:
        with subtests.test(message=message):
            assert parse_xid(message) is None


def test_parses_a_lost_gpu_without_an_xid(subtests: pytest.Subtests) -> None:
    for message in [
        "NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.",
        "NVRM: GPU at 0000:b3:00.0 has fallen off the bus.",
        "NVRM: GPU at PCI:0000:B3:00 has fallen off the bus.",
        "NVRM: The NVIDIA GPU 0000:b3:00.0 has fallen off the bus.",
        (
            "NVRM: The NVIDIA GPU 0000:b3:00.0\\x0aNVRM: (PCI ID: 10de:26b5) installed in this system has\\x0a"
            "NVRM: fallen off the bus and is not responding to commands.\\x0a"
        ),
    ]:
        with subtests.test(message=message):
            assert parse_lost_gpu(message) == "0000:b3:00"
    for message in [
        "NVRM: Xid (PCI:0000:b3:00): 79, GPU has fallen off the bus.",
        "python3: NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.",
        "NVRM: GPU 0000:b3:00.0: RmInitAdapter failed! (0x24:0xffff:1568)",
        "NVRM: GPU 0000:b3:00.0: 'x' thinks that GPU has fallen off the bus.",
    ]:
        with subtests.test(message=message):
            assert parse_lost_gpu(message) is None


def test_a_crash_of_a_process_named_like_an_xid_is_none() -> None:
    """The message of a crash begins with the process name, truncated to 15 characters: too few to forge a message."""
    name = "NVRM: Xid (PCI:0000:00:06): 79"[:15]

    assert parse_xid(f"{name}[1234]: segfault at 0 ip 0000000000000000 sp 00007ffd error 14 in python3") is None


def test_a_process_name_cannot_forge_other_fields(subtests: pytest.Subtests) -> None:
    for name in [
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
    ]:
        with subtests.test(name=name):
            read = parse_xid(f"NVRM: Xid (PCI:0000:00:06): 31, pid=600, name={name}, channel 0x0000001d, {MMU_FAULT}")

            assert read is not None
            assert (read.number, read.bus_id, read.pid) == (31, "0000:00:06", 600)
            assert read.name is not None
            assert printable(name).startswith(read.name)


@given(st.text(max_size=600))
@settings(max_examples=200)
def test_a_process_name_cannot_hide_or_change_an_xid(name: str) -> None:
    read = parse_xid(f"NVRM: Xid (PCI:0000:00:06): 31, pid=600, name={name}, channel 0x0000001d")

    assert read is not None
    assert (read.number, read.bus_id, read.pid) == (31, "0000:00:06", 600)
    assert read.name is None or (read.name.isprintable() and len(read.name) <= LONGEST_TEXT)


PIECES = ("NVRM: Xid (", "NVRM: GPU at ", "PCI:", "0000:00:06", " GPU-I:1", "): ", "31", ", ", "pid=", "name=", "'")
pieces = st.sampled_from((*PIECES, "9" * 50, "Out of memory: Killed process "))


@given(st.text() | st.lists(pieces, max_size=12).map("".join))
@settings(max_examples=200)
def test_any_text_parses_as_a_kernel_message(text: str) -> None:
    parse_xid(text)
    parse_gpu_address(text)
    parse_bus_id(text)
    pid = parse_oom_kill(text)
    assert pid is None or pid >= 0


@pytest.mark.timeout(30)
def test_parses_hostile_messages_in_linear_time(subtests: pytest.Subtests) -> None:
    """A search in quadratic time takes hours."""
    for filler in [", ", ", name=", ", pid=1", "'", "0"]:
        with subtests.test(filler=filler):
            read = parse_xid(f"NVRM: Xid (PCI:0000:00:06): 31, pid=1, name={filler * 1_000_000}\0")
            assert read is not None
            assert (read.number, read.bus_id, read.pid) == (31, "0000:00:06", 1)


def test_returns_the_address_of_a_gpu() -> None:
    uuid = "GPU-22cc6aea-2c9e-48a9-4c41-c6bac08fa8c1"

    assert parse_gpu_address(f"NVRM: GPU at PCI:0000:00:06: {uuid}") == ("0000:00:06", uuid)
    assert parse_gpu_address(f"NVRM: GPU at 0000:00:06: {uuid}") == ("0000:00:06", uuid)
    assert parse_gpu_address("NVRM: GPU at PCI:0000:00:06: GPU-1") is None
    assert parse_gpu_address(f"NVRM: GPU at PCI:0000:00:06: {uuid}, and more") is None


def test_bus_ids_of_all_sources_are_comparable() -> None:
    forms = ("PCI:0000:0A:06", "0000:0a:06", "0000:0A:06.0", "00000000:0A:06.0", "PCI:0000:0a:06.0")

    assert {parse_bus_id(form) for form in forms} == {"0000:0a:06"}
    assert parse_bus_id("00010000:e1:00.0") == "10000:e1:00"
    assert {parse_bus_id(none) for none in ("", "N/A", "0a:06.0", "0000:0a:06.0 ", "0000:0a")} == {None}


def test_the_catalogue_has_an_entry_for_79() -> None:
    assert {13, 31, 43, 45, 48, 63, 64, 74, 79, 94, 95, 119, 154} <= set(XIDS)
    fallen = XIDS.get(79)
    assert fallen is not None
    assert (fallen.action, fallen.kind) == ("RESTART_BM", XidClass.HARDWARE)
    assert XIDS.get(999) is None
    assert all(each.mnemonic and each.meaning for each in XIDS.values())


EXONERATE = (
    *(46, 48, 57, 58, 62, 63, 64, 74, 79, 94, 95, 110, 119, 120, 136, 140, 143, *range(144, 152), 156, 157, 158),
    *(160, 161, 166, 167, 168, 169, 171, 172, 173, 175, 177, 179, 185),
)
"""Errors of hardware, links and the driver."""
DO_NOT_EXONERATE = (
    # Errors of programs: an illegal address, an exception, a channel reset after one, a peer's memory.
    *(11, 13, 25, 31, 39, 43, 45, 68, 69, 137),
    # Exceptions of engines, which a program uses, and a channel that is reset to end its process.
    *(40, 41, 60, 70, 75, 82, 83, 86, 96, 99, 105, 108, 126, 135, 139, 142, 174),
    # Ambiguous: a corrupted push buffer (bus or program), a context switch timeout (hardware or an endless kernel).
    *(8, 32, 37, 38, 44, 66, 67, 80, 109, 141, 159, 170),
    # Harmless.
    *(14, 54, 78, 92, 93, 106, 107, 121, 154, 155, 162, 163, 164, 165, 176),
    # Unknown: unused numbers, those that no source lists, and future ones.
    *(0, 1, 30, 90, 122, 178, 180, 181, 182, 183, 184, 186, 250, 999, 99999, -1),
)


def test_only_errors_of_the_system_exonerate() -> None:
    assert [number for number in EXONERATE if not exonerates(number)] == []
    assert [number for number in DO_NOT_EXONERATE if exonerates(number)] == []


IN_CATALOGUE = (
    *(8, 11, 13, 14, 25, 31, 32, 37, 38, 39, 40, 41, 43, 44, 45, 46, 48, 54, 60, 62, 63, 64, 66, 67, 68, 69, 70, 71),
    *(72, *range(74, 81), *range(82, 87), 88, 89, *range(92, 111), 119, 120, 121, *range(126, 138), *range(139, 152)),
    *range(154, 173),
)
"""Numbers that NVIDIA's catalogue has for data centre GPUs (A100 to GB200). It marks all others to 172 as unused."""

OF_THE_DRIVER = (173, 174, 175, 176, 177, 179, 185)
"""Later numbers, which only the driver's source and its release notes have."""


def test_the_catalogue_has_all_numbers_that_the_sources_have() -> None:
    older = {57, 58}
    assert set(XIDS) == {*IN_CATALOGUE, *OF_THE_DRIVER, *older}


def test_an_entry_has_the_immediate_action_of_the_catalogue() -> None:
    """The later numbers have none there, so that no command follows from them."""
    actions = {
        "RESTART_APP": {8, 11, 13, 25, 31, 32, 39, 60, 68, 69, 77, 80, 82, 86, 94, 105, 126, 139},
        "IGNORE": {14, 37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 157, 160, 161},
        "RESET_GPU": {46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158},
        "RESTART_BM": {79},
        "RESTART_VM": {151},
        "CHECK_UVM": {159},
        "CHECK_MECHANICALS": {54},
        "WORKFLOW_NVLINK5_ERR": {*range(144, 151)},
        None: {*range(162, 173), *OF_THE_DRIVER},
    }
    for action, numbers in actions.items():
        assert {XIDS[number].action for number in numbers} == {action}


def test_only_system_classes_exonerate() -> None:
    kinds = {XIDS[number].kind for number in XIDS if exonerates(number)}

    assert kinds == {XidClass.HARDWARE, XidClass.LINK, XidClass.DRIVER}


@pytest.mark.parametrize(
    ("place", "kind", "access"),
    [
        (
            "GRAPHICS GPCCLIENT_T1_6 faulted @ 0x7f5a_e7504000.",
            "FAULT_PDE ACCESS_TYPE_VIRT_READ",
            ("T1", 0x7F5A_E750_4000, "GRAPHICS", "FAULT_PDE", AccessKind.READ),
        ),
        (
            "GRAPHICS GPC5 GPCCLIENT_T1_10 faulted @ 0x3_c1000000.",
            "FAULT_PTE ACCESS_TYPE_VIRT_ATOMIC_STRONG",
            ("T1", 0x3_C100_0000, "GRAPHICS", "FAULT_PTE", AccessKind.ATOMIC),
        ),
        (
            "CE2 HUBCLIENT_CE0 faulted @ 0x7f29_5b8c9000.",
            "FAULT_PRIV_VIOLATION ACCESS_TYPE_VIRT_WRITE",
            ("HUB_CE0", 0x7F29_5B8C_9000, "CE2", "FAULT_PRIV_VIOLATION", AccessKind.WRITE),
        ),
        (
            "GR0_PBDMA0 HUBCLIENT_ESC faulted @ 0x2_0440f000.",
            "FAULT_INFO",
            ("HUB_ESC", 0x2_0440_F000, "GR0_PBDMA0", "FAULT_INFO", None),
        ),
        (
            "GRAPHICS GPC3 GPCCLIENT_GCC faulted @ 0x7f347b754000.",
            "more: words",
            ("GCC", 0x7F34_7B75_4000, "GRAPHICS", None, None),
        ),
        ("GRAPHICS GPCCLIENT_T1_6 faulted @ 0x12.", "FAULT_PDE", None),
    ],
)
def test_parses_the_failed_access_of_an_illegal_address(
    place: str, kind: str, access: tuple[str, int, str, str | None, AccessKind | None] | None
) -> None:
    """Wordings of drivers 470 to 610."""
    expected = None
    if access is not None:
        unit, address, engine, fault, how = access
        expected = FailedAccess(unit=unit, address=address, engine=engine, fault=fault, kind=how)
    for before in ("", "Ch 00000010, intr 10000000. ", "channel 0x0000000f, intr 00000000. "):
        assert parse_failed_access(f"{before}MMU Fault: ENGINE {place} Fault is of type {kind}") == expected
    assert parse_failed_access("MMU Fault") is None
