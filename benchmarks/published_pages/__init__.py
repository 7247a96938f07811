"""Readers of the pages from which the built-in profiles are made (`builtin_profiles.py`), a module for each source."""
