"""The terminal: the live view, help, errors in one line, and videos of episodes."""
