"""A real Slurm on this machine: many virtual nodes on loopback, and gavel-py driving them."""
