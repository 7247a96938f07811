"""Proofs of answers, independent of the programs that produced them: validity, bounds, prices, and diagnosis of infeasibility.

Entry points: `certificates`, `infeasibility`.
"""
