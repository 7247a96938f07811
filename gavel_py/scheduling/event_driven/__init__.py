"""Decisions whenever something happens, in time that grows with what has changed."""

__all__: list[str] = []
