"""Tests of exporter/store/, history.py and model/values.py."""
