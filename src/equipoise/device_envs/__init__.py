"""Worlds: envs of many streams as functions on tensors of any device, so that they need not leave
the learner's device.
"""
