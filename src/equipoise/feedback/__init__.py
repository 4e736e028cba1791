"""Feedback: preferences of people between two clips or two texts, kept in a store that loses no
answer.

A store is a folder::

    feedback.sqlite           queries, answers, annotators, leases and texts
    segments/HASH.safetensors the arrays of a clip; HASH is the SHA-256 of the file

Rows and segments are never changed or removed, and an undone answer is a further row. So the
answers up to a row number are the same whenever they are read. A method that stores something
returns once it is on the disk. Several processes of one machine may use a store at once.
"""

from equipoise.feedback.records import (
    CHOICES,
    Answer,
    Ask,
    Choice,
    Counts,
    DiskFull,
    Kind,
    Message,
    Plan,
    Purpose,
    Query,
    Question,
    Refused,
    Text,
)
from equipoise.feedback.store import Store

__all__ = [
    "CHOICES",
    "Answer",
    "Ask",
    "Choice",
    "Counts",
    "DiskFull",
    "Kind",
    "Message",
    "Plan",
    "Purpose",
    "Query",
    "Question",
    "Refused",
    "Store",
    "Text",
]
