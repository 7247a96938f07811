"""Jobs that share GPUs: which run together, and how fractional jobs are packed onto GPUs."""

__all__: list[str] = []
