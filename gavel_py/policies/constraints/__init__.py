"""Constraints that any policy accepts: rules that an allocation must keep (hard), or may break at a penalty (soft).

`base` has the interface; `single_jobs` and `shares` the constraints; `compiling` turns them into rows and lower bounds
of a problem, reports their outcomes, and reads constraint files.
"""
