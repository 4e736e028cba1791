"""Worlds outside: games, robots and simulators that connect over a socket and drive the loop at
their own pace.
"""
