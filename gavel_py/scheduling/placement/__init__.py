"""On which GPUs the selected jobs run: a pure function of topology, gangs and free GPUs."""

__all__: list[str] = []
