"""Kinds of options: how the value of one is written in flags, variables and files, and read from them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from exporter.config import values
from exporter.config.settings import Switch
from exporter.errors import ConfigError

MOST_SECONDS = 1e9
MOST_OF_A_LIST = 64

Toml = str | int | float | bool | list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """`of_text` and `of_toml` read a value, and raise ConfigError, which begins with `where`; `to_toml` writes it.

    An option of a `repeatable` kind is a list: its flag may be given again, and its variable separates by commas.
    """

    metavar: str
    of_text: Callable[[str, str], Any]
    of_toml: Callable[[str, object], Any]
    to_toml: Callable[[Any], Toml] = str
    choices: tuple[str, ...] = ()
    repeatable: bool = False
    boolean: bool = False


def textual(metavar: str, parse: Callable[[str, str], Any], write: Callable[[Any], str] = str) -> Kind:
    """A text, in files too."""
    return Kind(
        metavar=metavar, of_text=parse, of_toml=lambda where, raw: parse(where, string(where, raw)), to_toml=write
    )


def choice(*choices: str) -> Kind:
    """One of a few words."""

    def parse(where: str, text: str) -> str:
        if text not in choices:
            raise ConfigError(f"{where}: {values.shown(text)} is none of {', '.join(choices)}")
        return text

    return Kind(
        metavar="|".join(choices),
        of_text=parse,
        of_toml=lambda where, raw: parse(where, string(where, raw)),
        choices=choices,
    )


def member(words: type[StrEnum]) -> Kind:
    """One of the words of an enumeration."""
    word = choice(*(each.value for each in words))
    return replace(
        word,
        of_text=lambda where, text: words(word.of_text(where, text)),
        of_toml=lambda where, raw: words(word.of_toml(where, raw)),
    )


def _itself(value: object) -> object:
    return value


def several(one: Kind, differing: Callable[[Any], object] | None = _itself) -> Kind:
    """A list of what `one` is, in which nothing stands twice: `differing` says by what, None: it may."""

    def parse(where: str, texts: list[str]) -> tuple[Any, ...]:
        if not 1 <= len(texts) <= MOST_OF_A_LIST:
            raise ConfigError(f"{where}: {len(texts)} of them; name 1 to {MOST_OF_A_LIST}")
        found = tuple(one.of_text(where, text) for text in texts)
        if differing is not None:
            by = [differing(value) for value in found]
            twice = next((text for text, value in zip(texts, by, strict=True) if by.count(value) > 1), None)
            if twice is not None:
                raise ConfigError(f"{where}: {values.shown(twice)} stands there twice")
        return found

    def of_toml(where: str, raw: object) -> tuple[Any, ...]:
        if not isinstance(raw, list):
            raise ConfigError(f"{where}: {values.shown(raw)} is no list; write it in brackets")
        return parse(where, [string(where, each) for each in raw])

    return Kind(
        metavar=one.metavar,
        of_text=lambda where, text: parse(where, [each.strip() for each in text.split(",")]),
        of_toml=of_toml,
        to_toml=lambda found: [str(one.to_toml(each)) for each in found],
        repeatable=True,
    )


def duration(least: float = 0.0, most: float = MOST_SECONDS) -> Kind:
    """A time: with its unit in flags and variables, a number of seconds in files, where the key ends in _seconds."""

    def within(where: str, seconds: float) -> float:
        if not least <= seconds <= most:
            raise ConfigError(f"{where}: {seconds:g} s is not from {least:g} s to {most:g} s")
        return seconds

    def of_toml(where: str, raw: object) -> float:
        if isinstance(raw, bool) or not isinstance(raw, int | float) or not abs(raw) <= MOST_SECONDS:
            raise ConfigError(f"{where}: {values.shown(raw)} is no number of seconds")
        return within(where, float(raw))

    return Kind(
        metavar="DURATION",
        of_text=lambda where, text: within(where, values.parse_duration(where, text)),
        of_toml=of_toml,
        to_toml=lambda seconds: int(seconds) if seconds == int(seconds) else float(seconds),
    )


def integer(least: int, most: int) -> Kind:
    """A whole number."""

    def within(where: str, number: int) -> int:
        if not least <= number <= most:
            raise ConfigError(f"{where}: {values.shown(number)} is not from {least} to {most}")
        return number

    def of_toml(where: str, raw: object) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int):
            raise ConfigError(f"{where}: {values.shown(raw)} is no whole number")
        return within(where, raw)

    return Kind(
        metavar="N",
        of_text=lambda where, text: within(where, values.parse_integer(where, text)),
        of_toml=of_toml,
        to_toml=int,
    )


def percentage() -> Kind:
    """A share in percent, more than none of it."""

    def of_toml(where: str, raw: object) -> float:
        if isinstance(raw, bool) or not isinstance(raw, int | float):
            raise ConfigError(f"{where}: {values.shown(raw)} is no number")
        if not 0 < raw <= 100:
            raise ConfigError(f"{where}: {values.shown(raw)} is not more than 0, and at most 100")
        return float(raw)

    return Kind(
        metavar="PERCENT",
        of_text=lambda where, text: of_toml(where, values.parse_integer(where, text)),
        of_toml=of_toml,
        to_toml=float,
    )


def boolean() -> Kind:
    """True or false; the flag needs no value, and has an opposite."""

    def of_toml(where: str, raw: object) -> bool:
        if not isinstance(raw, bool):
            raise ConfigError(f"{where}: {values.shown(raw)} is neither true nor false")
        return raw

    return Kind(metavar="BOOL", of_text=values.parse_boolean, of_toml=of_toml, to_toml=bool, boolean=True)


def switch() -> Kind:
    """True, false, or "auto"; the flag needs no value, and has an opposite."""

    def of_toml(where: str, raw: object) -> Switch:
        if raw == Switch.AUTO:
            return Switch.AUTO
        if not isinstance(raw, bool):
            raise ConfigError(f'{where}: {values.shown(raw)} is none of true, false and "auto"')
        return Switch.ON if raw else Switch.OFF

    return Kind(
        metavar="BOOL|auto",
        of_text=values.parse_switch,
        of_toml=of_toml,
        to_toml=lambda value: "auto" if value is Switch.AUTO else value is Switch.ON,
        boolean=True,
    )


def string(where: str, raw: object) -> str:
    """A string in a file, or ConfigError."""
    if not isinstance(raw, str):
        raise ConfigError(f"{where}: {values.shown(raw)} is no string; write it in quotes")
    return raw
