"""The plan of a run: a Program and a look at its env become a Blueprint, or one sentence that says
why they cannot.
"""
