"""Forwards: from a row's observation to its action, in torch or by a recording."""
