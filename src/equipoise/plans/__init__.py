"""The plan of a run: a Program and a look at its env become a Blueprint, or one sentence with the
reason why they cannot.
"""
