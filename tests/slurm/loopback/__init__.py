"""A real Slurm on this machine, with virtual nodes on loopback, driven by gavel-py."""
