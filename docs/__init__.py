"""The documentation, and what writes those of its files that follow from the program."""
