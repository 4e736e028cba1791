"""The record of a run: its directory, reports,
checkpoints and what is needed to play its policies.
"""
