"""Actors: step envs, choose actions, and write every row into its slot of the queue."""
