"""Checkpoints as a user handles them: which to keep, what there is, forks of a run, and folders for other programs.

Importing this package loads no torch.
"""
