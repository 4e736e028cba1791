"""Env families with an adapter of their own: Atari, EnvPool, MiniGrid, PettingZoo."""
