"""Linear programs from classes of jobs: their columns, their rows, and the rows that are added where an answer breaks them.

Entry points: `program.Program`, in which policies write objectives, and `matrices`, the same program as arrays.
"""
