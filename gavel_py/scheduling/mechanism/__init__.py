"""Which jobs run in a round, and on which accelerator type, from what each job is owed."""

__all__: list[str] = []
