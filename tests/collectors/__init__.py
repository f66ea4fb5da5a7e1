"""Tests of exporter/collectors."""
