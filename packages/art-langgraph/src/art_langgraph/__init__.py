"""Make a LangGraph agent trainable by swapping its chat model.

Nothing is implemented yet: the package reserves the name.
"""
