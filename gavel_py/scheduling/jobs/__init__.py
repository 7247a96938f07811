"""The jobs of a scheduler: `history` has those that may start and those that have left, with what has happened to them; `waiting`
those that wait for others, outside the table, or after a failure.
"""
