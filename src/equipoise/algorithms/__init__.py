"""Algorithms: one file each, with settings, network, act and loss. No algorithm depends on a
runtime.
"""
