"""A recording proxy: OpenAI's API in front of a run's engine, whose answers are learned from."""
