"""Tests of the service, its loop and its commands."""
