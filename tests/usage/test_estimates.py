"""Estimates of kernel times."""

from exporter.model.usage import KernelTimeEstimates


def test_a_length_that_changes_slowly_for_an_hour_is_followed() -> None:
    estimates, length = KernelTimeEstimates().with_client(1, 100.0, 50.0), 100.0
    for _ in range(3600):
        length *= 1.0002
        measured = {1: 1.0}, length, 2.0
        estimates = estimates.predicted(1.0).inflated(*measured).updated(*measured)
    assert abs((estimates.mean(1) or 0.0) - length) < 2 * estimates.standard_deviation(1) < 0.02 * length
