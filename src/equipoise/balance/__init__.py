"""Balance: which side of the ring holds the other up, as pure functions of what the workers
measured.
"""
