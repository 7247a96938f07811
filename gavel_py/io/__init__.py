"""Files in and out: checked records, text with line numbers, atomic writes, SQLite, the natural order of names.

Entry points: `validation.Record`, `reading`, `writing`. The package knows nothing of jobs, clusters or policies.
"""

__all__: list[str] = []
