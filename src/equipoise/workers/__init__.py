"""Kinds of workers, one file each: what a run is made of, how each part is built, and what becomes
of one that dies.

``kind.py`` says what a runtime asks of a kind; ``kinds.py`` lists the kinds of a run. Nothing is
imported here: a worker that only steps envs never loads torch.
"""
