"""Learners: from a batch to gradients, one optimiser step, and a new version of the weights."""
