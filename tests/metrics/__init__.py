"""Tests of exporter/metrics."""
