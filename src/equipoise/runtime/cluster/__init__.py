"""A run over several machines: sites with actors, and the home of the learners, which they reach by
messages.
"""
