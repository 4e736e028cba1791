"""A language model behind the paths of OpenAI's API, written by the engine of the ring."""
