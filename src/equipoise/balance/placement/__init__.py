"""Placement: forecasts of how fast a text run is, by which devices generate and which learn."""
