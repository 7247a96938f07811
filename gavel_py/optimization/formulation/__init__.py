"""Linear programs from classes of jobs: columns, rows, and further rows that are added when an answer breaks them.

Entry points: `program.Program`, in which policies write objectives, and `matrices`, the same program as arrays.
"""
