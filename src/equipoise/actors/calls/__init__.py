"""Calls of agents that a run learns from: conversations, groups, and the worker that answers."""
