"""Tolerances of the core, each declared once: up to where values count as equal, as zero or as met, and why this far.

They follow from three precisions: float64 has 16 digits, HiGHS meets rows to 1e-9, and people write amounts as decimals. What
controls one algorithm only (the width of a box, the step of a search, a cost that breaks ties) is declared beside it.
"""

from __future__ import annotations

LAST_DIGITS = 1e-14
"""Relative rounding error of a slope or of one term of a cost: about 50 units in the last place."""

FLOAT_ROUNDING = 1e-12
"""Relative rounding error of a sum over many jobs or rounds: float64 is exact to 1e-16, and some thousand errors may add up."""

DIFFERENCE_ROUNDING = 1e-10
"""Rounding error of objectives, dual functions and remainders of limits, relative to their terms, which cancel out in part."""

INPUT_ROUNDING = 1e-9
"""Tolerance on sums and quotients of amounts that users write as decimals: CPUs, GB, speeds, parts of a GPU. 0.3 / 0.1 is less than
3, and ten tenths of a GPU are less than one. Far more than rounding, far less than any amount that is requested.
"""

DURATION_ROUNDING = 1e-9
"""Relative tolerance on durations that are compared with starts of rounds, which are sums of the lengths of rounds."""

SECONDS_ROUNDING = 1e-6
"""Rounding error of times in seconds and in GPU-seconds: float64 resolves seconds since 1970 to 2e-7."""

SOLVER_TOLERANCE = 1e-9
"""To what HiGHS is set for rows and prices; all other tolerances of rows and levels follow from it. Time fractions, parts of all
GPUs, throughputs, gains and broken rules up to this, relative to their size, may be errors of the solver, and count as 0.
"""

MET = SOLVER_TOLERANCE / 10
"""Excess over all GPUs and limits up to which rules count as met: more than rounding, and little beside the violation that proofs
accept, so that whatever passes this check can be solved and proven.
"""

CLEAR = 1e-7
"""Relative difference that is no error of the solver, being a hundred times its tolerance. It must stay small: of equally good
answers, some may differ by more and others not, and what follows would depend on which of them is found.
"""

INTERIOR_TOLERANCE = 1e-5
"""Time fractions and GPUs up to this count as 0 after an interior point method, which ends this near to 0 if the objective is
curved.
"""

PROOF_TOLERANCE = 1e-6
"""Accepted gap between value and bound, relative to their size; objectives and what is measured against them are known to this."""

LEAST_LEVEL = 1e-6
"""Part of the utopia bound, or of the largest level, below which a level is not known to all digits, since rounding of costs moves
it.
"""

DERIVATIVE_STEP = 1e-6
"""Relative increase of resources for a derivative by a difference: the square root of `FLOAT_ROUNDING`."""

WHOLE_TOLERANCE = 1e-6
"""Distance up to which a value of a program counts as a whole number of GPUs or replicas: programs with whole numbers keep rows to
1e-7.
"""

DEFICIT_ROUNDING = 1e-6
"""Deficits and scores of rounds have six digits. Smaller differences may be rounding errors, and gains of them could keep a search
from ending.
"""
