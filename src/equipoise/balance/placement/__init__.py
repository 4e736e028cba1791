"""Placement: which devices of a text run generate and which learn, by forecasts of every plan."""
