"""Experiment trackers of a run; each package is imported only if a run reports to it."""
