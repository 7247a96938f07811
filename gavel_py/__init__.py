"""gavel_py: which job gets which GPU type, for how much of the time, and on which GPUs."""
