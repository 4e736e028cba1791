"""Weights: versioned parameters, published by the learner and fetched by everything that acts."""
