"""Env failures: checks of every row, capsules, and reproducing what a capsule recorded."""
