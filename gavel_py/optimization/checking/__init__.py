"""Proofs of answers, independent of the programs that they come from: validity, bounds, prices, and why there is no answer.

Entry points: `certificates`, `infeasibility`.
"""
