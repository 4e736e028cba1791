"""Parameters: what a learner keeps of a network, whole or in parts, and how a gradient moves it."""
