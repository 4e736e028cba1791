"""Serving: a policy of the registry behind HTTP and a unix socket, in one process without torch."""
