"""Score a group of trajectories against each other with an LLM judge.

Nothing is implemented yet: the package reserves the name.
"""
