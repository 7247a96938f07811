"""From arrays to a certified optimum: reduction to job classes, linear programs, HiGHS, certificates.

Entry points: `job_classes`, and the packages `formulation`, `solving` and `checking`. The package depends on neither policies nor
throughput profiles.
"""
