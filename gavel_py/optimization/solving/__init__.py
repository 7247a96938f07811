"""From a linear program to its optimum: HiGHS, and searches that solve a few small programs instead of a large one.

Entry points: `highs.LinearSolver`, `level_search`, `progressive_filling`, `concave`.
"""
