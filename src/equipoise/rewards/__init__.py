"""Rewards: what was given becomes what an algorithm learns from. An env's rewards take a step, samples of text are scored.

The step (``step``) stands between the experience and ``Learns.targets``: the data keeps the env's own rewards, so reports stay
raw. Samples of text are scored by functions of TRL's signature (``functions``), in processes with a deadline (``scoring``).
This package imports nothing by itself: a process that scores text needs no torch.
"""
