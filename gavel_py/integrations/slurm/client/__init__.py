"""Slurm as the driver sees it: its commands, their notation, and plain records of nodes and jobs. It knows nothing of rounds."""
