"""A language model behind the paths of OpenAI's API, on the engine that also draws in training."""
