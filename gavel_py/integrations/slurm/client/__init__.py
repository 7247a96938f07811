"""Access to Slurm: its commands, their notation, and plain records of nodes and jobs. Independent of rounds and the scheduler."""
