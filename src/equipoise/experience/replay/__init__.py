"""Replay: rows kept once and learned from again, in the learner's process or in shards."""
