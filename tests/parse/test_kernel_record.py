"""A record of /dev/kmsg: who wrote it, and what; nobody else passes for the kernel."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.parse.kernel_log import KernelMessage, parse_kernel_record

XID = "NVRM: Xid (PCI:0000:00:06): 43, pid=456, name=nvidia-cuda-mps, channel 0x0000000a"


def test_a_record_as_the_kernel_gives_it() -> None:
    assert parse_kernel_record(f"4,360,27859548,c;{XID}") == KernelMessage(
        priority=4, facility=0, sequence=360, microseconds=27859548, message=XID
    )


@pytest.mark.parametrize("flags", ["-", "c", "+", "-,caller=T1234", "c,caller=C3"])
def test_flags_and_what_later_kernels_add_to_them_are_passed_over(flags: str) -> None:
    read = parse_kernel_record(f"3,7,9,{flags};text; with, separators")

    assert read is not None
    assert read.message == "text; with, separators"


def test_the_dictionary_behind_the_text_is_none_of_it() -> None:
    read = parse_kernel_record("6,1,2,-;text\n SUBSYSTEM=pci\n DEVICE=+pci:0000:00:06.0\n")

    assert read is not None
    assert read.message == "text"


def test_only_what_the_kernel_itself_wrote_is_by_the_kernel() -> None:
    """Whoever writes to /dev/kmsg, with whatever prefix, is given facility 1, or the one that he asked for; never 0."""
    by = {prefix: parse_kernel_record(f"{prefix},1,2,-;{XID}") for prefix in (0, 4, 7, 8, 12, 30, 8 * 23 + 4)}

    assert [prefix for prefix, read in by.items() if read is not None and read.by_kernel] == [0, 4, 7]


@pytest.mark.parametrize(
    "text",
    [
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
    ],
)
def test_what_is_no_record_is_none(text: str) -> None:
    assert parse_kernel_record(text) is None


@given(st.text() | st.builds("{},{},{},{};{}".format, *[st.integers() | st.text(max_size=5)] * 5))
@settings(max_examples=200)
def test_no_text_makes_it_raise(text: str) -> None:
    read = parse_kernel_record(text)

    assert read is None or "\n" not in read.message
