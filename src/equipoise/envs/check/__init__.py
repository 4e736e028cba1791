"""``equipoise check``: find out what is wrong with an env before training does."""
