"""The Program: its JSON, its settings with their facts, and its refusals."""
