"""What a driver shows of its work and never acts on: the log of its decisions, the queue for users, figures for Prometheus."""
