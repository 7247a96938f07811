"""Kueue, the queue of Kubernetes for batch jobs: what it does, why a workload waits, and what would help; it changes nothing."""
