"""Experiment trackers that a run also reports to, each imported when a run asks for it."""
