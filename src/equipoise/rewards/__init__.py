"""Rewards: an env's rewards become the rewards that an algorithm learns from, by parts that follow
each other (``part``).

The last part (``step``) scales and normalises. The data keeps the env's own rewards, so reports
stay raw.
"""
