"""Tuning: values of a run that are chosen by time on this machine, measured by one race."""
