"""Faults injected into real runs, and the proof of what became of every row."""
