"""Recorded data: Minari data sets, written and read."""
