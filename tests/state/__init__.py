"""Tests of the reducer: daemons, servers, clients, logs and the poll schedule."""
