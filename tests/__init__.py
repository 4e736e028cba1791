"""The tests: one folder a room, and ``house/`` for the house as a whole."""
