"""Fair queueing in a tree of tenants: what each job has been served when all rise together."""

from gavel_py.service.tree import ServiceRise, ServiceTree

__all__ = ["ServiceRise", "ServiceTree"]
