"""Small envs of ours: catch, bit flip, the T-maze, repeat the first, and the ruler."""
