"""Private names of other libraries: a function for each name, a file for each library.

A private name may change with any version of its library, so no file outside of this room reads one
(`tests/private`). Each function states what it does, with which versions it was tried, and what to
do if the name is gone. Each has a test that fails if the name is missing or means another thing. A
file imports its own library alone; importing this room imports nothing.
"""
