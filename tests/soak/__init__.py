"""Run the test suite many times in a row on a machine that is busy with other MPS daemons."""
