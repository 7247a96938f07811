"""Files in and out: checked records, reading, atomic writing, snapshots; names, locks and random numbers.

Entry points: `records.Record`, `reading`, `writing`, `snapshots`. The package does not know jobs, clusters or policies.
"""
