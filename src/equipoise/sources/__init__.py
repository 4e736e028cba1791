"""Where the experience of a run comes from."""
