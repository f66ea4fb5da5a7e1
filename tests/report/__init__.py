"""Tests of exporter/report."""
