"""Tests of the answers about a fleet, and of the report that prints them."""
