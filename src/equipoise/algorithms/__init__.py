"""Algorithms: one file each, with settings, network, act and loss. None knows a runtime."""
