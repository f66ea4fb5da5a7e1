"""Configuration of logrotate."""

from exporter.doctor.directory_readers import parse_logrotate

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


def test_a_stanza_matches_the_logs_of_its_patterns() -> None:
    mps, syslog = parse_logrotate(TEXT)
    assert mps.matches("/var/log/nvidia-mps/control.log")
    assert mps.matches("/srv/mps/control.log")
    assert not mps.matches("/var/log/nvidia-mps/0/control.log")
    assert not mps.matches("/var/log/syslog")
    assert syslog.matches("/var/log/syslog")


def test_truncates_only_with_copytruncate() -> None:
    assert [each.truncates for each in parse_logrotate(TEXT)] == [True, False]
    assert [each.truncates for each in parse_logrotate("/a { # copytruncate\n nocopytruncate\n}")] == [False]


def test_a_text_of_another_form_has_no_stanza() -> None:
    for text in ("", "{", "}", "{}{", "\0" * 100):
        assert all(not each.matches("/a") for each in parse_logrotate(text))
