"""Adapters of the `Engine` seam: what serves a policy."""
