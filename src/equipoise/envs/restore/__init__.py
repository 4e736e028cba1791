"""Restoring envs on a resume: exactly, by replaying actions, or by a new episode."""
