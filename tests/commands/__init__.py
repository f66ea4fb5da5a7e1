"""Tests of all commands that the program, its alerts and its documentation show."""
