"""Tests of what a person sees at a terminal."""
