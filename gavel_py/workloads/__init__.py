"""Workloads: traces of submitted jobs, read from many formats, generated, sampled, cut and summarised."""

from gavel_py import names_in

__getattr__, __dir__, __all__ = names_in(__name__)
