"""The reducer: pure functions from the known state and an observation to the next state and events."""
