"""Nets at the openings: doors through which examples of anything are pushed, and the faults that
they must catch.
"""
