"""Score a group of trajectories against each other with an LLM judge. Nothing is implemented yet: the name is reserved."""
