"""Files in and out: checked records, reading, atomic writing, snapshots, SQLite's errors; names, locks and random numbers.

Entry points: `records.Record`, `reading`, `writing`, `snapshots`. The package knows nothing of jobs, clusters or policies.
"""
