"""Tenants: who jobs belong to, the tree that they form, and the place of jobs in it."""

from gavel_py.tenants.places import service_tree
from gavel_py.tenants.tenant import Tenant, TenantPolicy
from gavel_py.tenants.tree import TenantTree

__all__ = ["Tenant", "TenantPolicy", "TenantTree", "service_tree"]
