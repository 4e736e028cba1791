"""Scoring: samples of text become rewards, by functions of TRL's signature in processes with a
deadline.

This package imports nothing by itself: a process that scores text needs no torch.
"""
