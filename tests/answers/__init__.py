"""Tests of the answers about a fleet, and of the command `report`."""
