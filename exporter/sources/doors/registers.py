"""Where a probe finds a function's arguments and its result: by machine, in what the kernel saved of its registers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Registers:
    """Offsets in struct pt_regs.

    `stack` is the stack pointer's, `stacked` where, from there, the first argument lies that is in no register.
    """

    arguments: tuple[int, ...]
    result: int
    stack: int
    stacked: int


_BY_MACHINE = {
    "x86_64": Registers(arguments=(112, 104, 96, 88, 72, 64), result=80, stack=152, stacked=8),
    "aarch64": Registers(arguments=tuple(range(0, 64, 8)), result=0, stack=248, stacked=0),
}
"""The System V ABI and AAPCS64; arch/x86/include/asm/ptrace.h and arch/arm64/include/uapi/asm/ptrace.h in Linux."""


def registers_of(machine: str) -> Registers | None:
    """Those of a machine, as uname(2) names it; None where they are not known here."""
    return _BY_MACHINE.get(machine)
