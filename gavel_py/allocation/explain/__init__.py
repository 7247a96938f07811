"""Explanations: what a job gets, which rows hold it there, what more GPUs would change, who has what it could use or shares GPUs.

records: what is told; duals, binding: what the proof of an allocation says of one job; order: what was gone at its turn; own_time,
places, reasons: either of them; types: what columns and rows are about; holders: who has what is scarce; more_gpus: one more of
each type; partners: who shares, and why two jobs do not; net_gains: what that would cost; explaining: all of it together.
"""

from gavel_py.allocation.explain.explaining import explain
from gavel_py.allocation.explain.records import Binding, Explanation, Holder, OneMoreGpu, Others, Partner, Together

__all__ = ["Binding", "Explanation", "Holder", "OneMoreGpu", "Others", "Partner", "Together", "explain"]
