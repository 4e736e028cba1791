"""Studies: loops around runs that search, breed, stop and compare, as a directory that a killed
study goes on from.
"""
