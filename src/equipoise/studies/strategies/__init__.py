"""Strategies of a study, one file each: which trials begin, go on, stop and are cloned."""
