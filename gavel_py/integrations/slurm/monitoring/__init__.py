"""What a driver publishes but never reads back: the log of its decisions, the queue for users, metrics for Prometheus."""
