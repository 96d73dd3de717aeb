"""Adapters of the `Trainer` seam: what turns rows into an optimiser step."""
