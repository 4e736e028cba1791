"""A run from its first to its last moment: start, report, evaluate, save, sum up."""
