"""Algorithms: one file each, with hyper-parameters, network, act and loss; none knows which runtime
it runs on.
"""
