"""Which sources a user can read, and which commands a control daemon obeys: the tables of docs/security.md."""
