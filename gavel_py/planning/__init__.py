"""Planning: which nodes to buy, keep and retire, from hourly demand, from jobs, or from a trace.

Entry points: `read_catalog`, `plan_from_trace`, `read_demand`, `plan_fleet` and `walk_forward`. Fleets for hourly demand are proven
by bounds, those for jobs compared by paired replays.
"""

from gavel_py import names_in

__getattr__, __dir__, __all__ = names_in(__name__)
