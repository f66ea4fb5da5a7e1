"""The books are kept here: SM time, energy and memory are put to those who used them, and nothing is lost. Pure."""
