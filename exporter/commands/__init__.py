"""What each command does: arguments and a configuration in, the exit code out."""
