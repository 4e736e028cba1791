"""Runtimes: place the workers of a run in one thread or in processes, wait, and replace failed
workers.
"""
