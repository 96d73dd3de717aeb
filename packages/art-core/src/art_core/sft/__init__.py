"""Supervised training on demonstrations: what may be an example, its rows, the schedule, and the run."""
