"""From arrays to a certified optimum: reduction to job classes, linear programs, HiGHS, certificates.

Entry points: `program.Program`, `level_search`, `solver`, `proof`. The package knows neither policies nor throughput profiles.
"""

__all__: list[str] = []
