"""What is believed of how long kernels last, measurement by measurement."""

from exporter.model.beliefs import Beliefs


def test_a_length_that_changes_slowly_for_an_hour_is_followed() -> None:
    beliefs, length = Beliefs().with_new(1, 100.0, 50.0), 100.0
    for _ in range(3600):
        length *= 1.0002
        measured = {1: 1.0}, length, 2.0
        beliefs = beliefs.aged(1.0).shaken(*measured).measured(*measured)
    assert abs((beliefs.length(1) or 0.0) - length) < 2 * beliefs.deviation(1) < 0.02 * length
