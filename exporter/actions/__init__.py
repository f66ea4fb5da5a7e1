"""The watchdog's hands: what the core has decided is done here, and nowhere else."""
