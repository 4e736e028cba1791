"""Engines: draw samples of prompts from a language model, token by token,
while its weights change.
"""
