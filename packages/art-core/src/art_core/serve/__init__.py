"""The OpenAI-compatible server: chat semantics live here once, for every engine."""
