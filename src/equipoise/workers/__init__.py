"""Kinds of workers, one file each: the parts of a run, the building of each part, and the
consequences of a part's death.

``kind.py`` has a runtime's interface to a kind; ``kinds.py`` lists the kinds of a run. Nothing is
imported here: a worker that only steps envs never loads torch.
"""
