"""One pipe directory is one daemon: the configuration's name for it outweighs a unit's, and that one its own."""

from exporter.model.daemon import FORGOTTEN_SECONDS, NamedBy
from exporter.model.event import EventName
from exporter.model.node import Node
from exporter.model.observation import DaemonFound, LogFile, Observation, SourceReading
from tests.builders import AT, CLIENT, DAEMON, Reduced, at_work, look, reduced

UNIT, CONFIGURED, DISCOVERED = NamedBy.UNIT, NamedBy.CONFIGURATION, NamedBy.DISCOVERED


def found(
    name: str = DAEMON,
    by: NamedBy = DISCOVERED,
    *,
    directory: str = DAEMON,
    expected: bool | None = None,
    at: float = AT,
    unit: str | None = None,
    limit: int | None = None,
) -> DaemonFound:
    return DaemonFound(
        at=at,
        daemon=name,
        pipe_directory=directory,
        log_directory="/log",
        expected=by is not DISCOVERED if expected is None and by is not DISCOVERED else expected,
        unit=unit,
        clients_limit=limit,
        by=by,
    )


def declared(at: float = AT, *, expected: bool = True) -> DaemonFound:
    return found(by=NamedBy.DEVICE_PLUGIN, expected=expected, at=at)


def after(*seen: Observation) -> Reduced:
    return reduced(*seen, start=Node())


def names(*seen: Observation) -> list[str]:
    return list(after(*seen).node.daemons)


def test_a_unit_adds_to_a_daemon_that_the_configuration_names_and_makes_it_no_more_expected() -> None:
    story = after(found("night", CONFIGURED, expected=False), found(by=UNIT, unit="x.service"))

    assert list(story.node.daemons) == ["night"]
    assert (story.daemon.runtime.unit, story.daemon.declared.expected, story.daemon.declared.by) == (
        "x.service",
        False,
        CONFIGURED,
    )


def test_a_unit_does_not_outweigh_the_unit_that_is_configured() -> None:
    story = after(found("night", CONFIGURED, unit="night.service"), found(by=UNIT, unit="x.service"))

    assert story.daemon.runtime.unit == "night.service"


def test_a_weightier_name_takes_the_place_of_a_lighter_one_whichever_comes_first() -> None:
    assert names(found(), found("night", CONFIGURED)) == ["night"]
    assert names(found("night", CONFIGURED), found()) == ["night"]
    assert names(found(by=UNIT), found("night", CONFIGURED)) == ["night"]


def test_a_directory_is_the_same_however_its_path_is_written() -> None:
    assert names(found("night", CONFIGURED, directory="/run//mps/x/.."), found("/run/mps", directory="/run/mps/")) == [
        "night"
    ]


def test_a_containers_directory_is_not_the_hosts() -> None:
    inside = f"{DAEMON}@0123456789ab"

    assert names(found("night", CONFIGURED), found(inside), found(inside)) == ["night", inside]


def test_a_new_name_keeps_what_is_known_and_nothing_is_lost_or_connected_twice() -> None:
    story = after(found(), *at_work(CLIENT), found("night", CONFIGURED, at=AT + 1), look("log", at=AT + 10))

    assert list(story.node.daemons) == ["night"]
    assert list(story.daemon.clients) == [CLIENT]
    assert len(story.of(EventName.CLIENT_CONNECTED)) == 1
    assert story.of(EventName.DAEMON_LOST) == story.of(EventName.CLIENT_DISCONNECTED) == []


def test_a_new_name_of_the_configuration_replaces_its_old_one() -> None:
    assert names(found("old", CONFIGURED), found("new", CONFIGURED)) == ["new"]


def test_what_comes_late_for_a_name_that_is_no_more_does_not_bring_it_back_for_long() -> None:
    late = LogFile(at=AT + 1, daemon="old", file="control.log")
    much_later = SourceReading(at=AT + 1000, name="log", seconds=0.1)

    assert names(found("old", CONFIGURED), found("new", CONFIGURED), late, much_later) == ["new"]


def test_what_the_configuration_says_no_more_is_taken_back() -> None:
    story = after(found(by=CONFIGURED, unit="x.service", limit=20), found(by=CONFIGURED))

    assert (story.daemon.runtime.unit, story.daemon.declared.clients_limit) == (None, None)


def test_who_finds_a_daemon_takes_nothing_back() -> None:
    story = after(found(by=CONFIGURED, unit="x.service", limit=20), found())

    assert (story.daemon.runtime.unit, story.daemon.declared.clients_limit, story.daemon.declared.expected) == (
        "x.service",
        20,
        True,
    )


def test_a_daemon_that_the_configuration_drops_is_one_that_is_only_there() -> None:
    story = after(found("night", CONFIGURED, limit=20), found("night", expected=False))

    assert (story.daemon.discovered, story.daemon.declared.expected, story.daemon.declared.clients_limit) == (
        True,
        False,
        None,
    )


def test_a_unit_that_is_disabled_takes_back_its_word_and_no_other() -> None:
    disabled = found(by=UNIT, expected=False)

    assert after(found(by=UNIT), disabled).daemon.discovered
    assert after(found(by=CONFIGURED), disabled).daemon.declared.expected
    assert names(disabled) == []


def test_a_daemon_that_was_found_and_never_seen_is_forgotten() -> None:
    later = look("control", at=AT + 2 * FORGOTTEN_SECONDS + 1)

    assert names(found(), later) == []
    assert names(found(by=UNIT), later) == [DAEMON]


def test_a_daemon_of_which_a_late_word_is_all_there_is_is_forgotten_too() -> None:
    late = LogFile(at=AT, daemon=DAEMON, file="control.log")

    assert names(late) == [DAEMON]
    assert names(late, look("control", at=AT + 2 * FORGOTTEN_SECONDS + 1)) == []


def test_a_daemon_of_the_device_plugin_is_expected_until_the_plugin_stops_it() -> None:
    story = after(found(), declared(), found())
    assert (story.daemon.declared.expected, story.daemon.declared.by) == (True, NamedBy.DEVICE_PLUGIN)
    story = reduced(declared(AT + 10, expected=False), start=story.node)
    assert (story.daemon.declared.expected, story.daemon.discovered) == (False, True)


def test_a_unit_and_the_device_plugin_do_not_withdraw_each_others_declaration() -> None:
    assert after(found(by=UNIT), declared(), declared(expected=False)).daemon.declared.expected
    assert after(declared(), found(by=UNIT, expected=False)).daemon.declared.expected


def test_the_configuration_outweighs_the_device_plugin() -> None:
    story = after(found("night", CONFIGURED, expected=False), declared())
    assert (story.daemon.name, story.daemon.declared.expected) == ("night", False)
