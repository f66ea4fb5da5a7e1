"""What logrotate is told of a log."""

from exporter.parse.logrotate import parse_logrotate

TEXT = """\
# MPS
weekly
/var/log/nvidia-mps/*.log "/srv/mps/control.log" {
    # not: nocopytruncate
    daily
    copytruncate
    postrotate
        true
    endscript
}
/var/log/syslog
{
    rotate 4
}
"""


def test_a_stanza_holds_for_the_logs_that_its_patterns_name() -> None:
    mps, syslog = parse_logrotate(TEXT)
    assert mps.matches("/var/log/nvidia-mps/control.log")
    assert mps.matches("/srv/mps/control.log")
    assert not mps.matches("/var/log/nvidia-mps/0/control.log")
    assert not mps.matches("/var/log/syslog")
    assert syslog.matches("/var/log/syslog")


def test_it_truncates_where_that_is_said_and_nowhere_else() -> None:
    assert [each.truncates for each in parse_logrotate(TEXT)] == [True, False]
    assert [each.truncates for each in parse_logrotate("/a { # copytruncate\n nocopytruncate\n}")] == [False]


def test_what_is_no_configuration_has_none() -> None:
    for text in ("", "{", "}", "{}{", "\0" * 100):
        assert all(not each.matches("/a") for each in parse_logrotate(text))
