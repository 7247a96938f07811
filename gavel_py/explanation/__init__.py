"""Explanations: what a job gets, which rows hold it there, what more GPUs would change, and who has what it could use.

records: what is told; duals, binding: what the proof of an allocation says of one job; order: what was gone at its turn; own_time,
places, reasons: either of them; holders: who has what is scarce; more_gpus: one more of each type; explaining: all of it together.
"""

from gavel_py.explanation.explaining import explain
from gavel_py.explanation.records import Binding, Explanation, Holder, OneMoreGpu, Others

__all__ = ["Binding", "Explanation", "Holder", "OneMoreGpu", "Others", "explain"]
