"""The Program: its JSON, its settings with their facts, and what cannot work."""
