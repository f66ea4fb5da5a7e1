"""Read the world. Each source returns what it saw or why it saw nothing; it never raises, and decides nothing."""
