"""The fleet: its answers from the recorded series of all nodes, for the command `report` and the dashboards."""
