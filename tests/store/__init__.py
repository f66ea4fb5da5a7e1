"""Tests of exporter/store/, history.py and serialization.py."""
