"""Parameters: a learner's copy of a network, whole or in parts, and how a gradient moves it."""
