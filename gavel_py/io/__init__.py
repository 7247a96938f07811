"""Input and output: validated records, reading, atomic writing, snapshots; names, locks and random numbers.

Entry points: `records.Record`, `reading`, `writing`, `snapshots`. The package is independent of jobs, clusters and policies.
"""
