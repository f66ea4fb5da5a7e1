"""Masking of recordings: names of users, workloads, machines and GPUs become other letters, the same everywhere.

Each word that is not one of `WORDS` is replaced, letter by letter. The replacement depends on a random key and on the
letters before it, so that equal words stay equal and a shortened name stays the beginning of the whole one. Case and
length stay. Numbers stay, PIDs, UIDs, times and jobs of Slurm among them. All hexadecimal digits of identifiers of
GPUs, pods and containers are replaced.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import blake2b
from string import ascii_lowercase, ascii_uppercase
from typing import Any

WORDS = """
    accept accepting access action active again agent all allocating allowed already anonymous applications are
    associated assuming at attributes backoff be been belonging besteffort between bin binary board burstable bus bytes
    cannot cgroup changed channel chunk chunks ci claim client clients closed cmd com command connect connected
    connecting connection container containerd context contexts control copyright corporation count create created
    creating credentials cri crio csv cuda current daemon default deleted destroy device devices did directory dis
    disabled disconnected display docker dockerd down driver due ecs ecstasks en enabled encountered engine enough env
    error exception execute exists exit exited exiting expected failed fallen fatal fault faulted files find finish
    following for force format found free from gcc get gpc gpcclient gpu gpus graphics groups handling has have id ids
    in inactive include information initialization initializing installed insufficient intr invalid io is issued job
    kill killed kubelet kubepods level lib libpod limit linux list local log lspart lxc maws max maximum mem memory
    microk mig mmu most mount mps ms name named namespace nerdctl new no nobody nomad not notified ns number nvidia nvrm
    of off on only oom open ordinal other out parent partition payload pci pde pending percentage pid pinned pipe pod
    priority privilege privileges process progress ps push qnx query quit reached read ready rece receive received
    recevie recovery refusing region remainder reply request requesting reserve reserved reset rke root run scontroller
    scope segment send serial server servers service session set share shared shm shut shutdown shutting slice sluid
    slurm slurmstepd sm sms snap socket start started starting startup status stdout step sticky succeeded supported
    swap sworker system systemd task teardown terminate termination the there this thread threads timeout tmp to torn
    total trigging try type ui uid unable unallocated unix unknown used user using usr uuid valid var version vgpu virt
    visible volta waiting was will with worker write xid yes
"""
"""Words that identify nothing: those of the texts of MPS, of the kernel and of cgroups that the exporter reads."""

_PUBLIC_FIELDS = frozenset(
    (
        *("recording", "source", "driver", "driver_version", "cuda_version", "compute_capability", "compute_mode"),
        *("state", "load", "active", "sub", "result", "restart", "wait_channel"),
        *("by", "kind", "code", "reason", "profile"),
    )
)
"""Fields with words of systemd, of the kernel, of NVML, or of the exporter itself."""

_WITH_NAMES_AS_KEYS = frozenset({"allocatable"})
"""The fields whose keys are names: resources of Kubernetes."""

HEXADECIMAL = "0123456789abcdef"
_UUID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}"
_HEX = r"(?=[0-9]*[a-f])[0-9a-f]{12,}"
_SLURM_JOB = r"(?-i:\bs[0-9A-HJKMNP-TV-Z]{13}\b)"
_PCI_ADDRESS = r"\b(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9])?\b"
_TOKEN = re.compile(
    rf"(?P<public>{_SLURM_JOB}|0x[0-9a-f]+|\\x[0-9a-f]{{2}}|{_PCI_ADDRESS})"
    rf"|(?P<gpu>(?:GPU|MIG)-)(?P<part>[0-9a-f][0-9a-f-]*)|(?P<id>{_UUID}|{_HEX})"
    rf"|(?P<word>(?:(?!{_UUID}|{_HEX})[^\W\d_])+)",
    re.IGNORECASE,
)


class Mask:
    """Replaces names by a random `key`. With the same key, equal texts become equal ones."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._words = frozenset(WORDS.split())
        self._letters: Callable[[str, str], Mapping[str, str]] = lru_cache(maxsize=1 << 16)(self._permutation)

    def text(self, text: str) -> str:
        """Return a text with all names replaced."""
        return _TOKEN.sub(self._replace, text)

    def values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON values of an observation or a header with all names replaced."""
        # The name of a GPU is its model, that of a collector its own.
        has_public_name = "gpu" in values or "uuid" in values or values.get("source") == "source"
        public = _PUBLIC_FIELDS | {"name"} if has_public_name else _PUBLIC_FIELDS
        return {
            key: value
            if key in public and isinstance(value, str)
            else self._value(_with_keys(value, self.text) if key in _WITH_NAMES_AS_KEYS else value)
            for key, value in values.items()
        }

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return self.values(value)
        return [self._value(each) for each in value] if isinstance(value, list | tuple) else value

    def _replace(self, found: "re.Match[str]") -> str:
        if found["public"]:
            return found[0]
        if found["word"]:
            word = found[0]
            return word if len(word) == 1 or word.casefold() in self._words else self._substituted(word, _letters_of)
        return (found["gpu"] or "") + self._substituted((found["part"] or found["id"]).lower(), _hexadecimal)

    def _substituted(self, word: str, alphabet_of: Callable[[str], str]) -> str:
        """Replace each character that has an alphabet, by those before it. Separators stay, and do not count."""
        before, replaced = "", []
        for each in word:
            alphabet = alphabet_of(each)
            replaced.append(self._letters(before, alphabet).get(each, alphabet[:1]) if alphabet else each)
            before += each if alphabet else ""
        return "".join(replaced)

    def _permutation(self, before: str, alphabet: str) -> Mapping[str, str]:
        def rank(letter: str) -> bytes:
            return blake2b(f"{alphabet}{before}\0{letter}".encode(errors="surrogateescape"), key=self._key).digest()

        return dict(zip(alphabet, sorted(alphabet, key=rank), strict=True))


def _letters_of(character: str) -> str:
    return ascii_uppercase if character in ascii_uppercase else ascii_lowercase


def _hexadecimal(character: str) -> str:
    return HEXADECIMAL if character in HEXADECIMAL else ""


def _with_keys(values: Mapping[str, Any], masked: Callable[[str], str]) -> dict[str, Any]:
    return {masked(key): value for key, value in values.items()}
