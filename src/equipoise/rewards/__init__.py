"""Rewards: the terms of the sum that an algorithm learns from, one file each (``term``, ``terms``).

The last step (``step``) scales and normalises the sum. The data keeps the env's own rewards, so
reports stay raw.
"""
