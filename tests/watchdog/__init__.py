"""Tests of exporter/watchdog."""
