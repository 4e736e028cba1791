"""The registry: versions of policies in a folder, with aliases, lineage and an audit, that can be
copied and merged by copying.

A registry has files of two kinds, and no file is changed after it was written, so the union of two
registries is a registry::

    registry.json                      says that the folder is a registry, and its format
    artifacts/VERSION/                 an artifact; VERSION is the SHA-256 of its manifest.json
    policies/NAME/audit/RECORD.json    one thing that was done to a policy, or refused

The name of a record gives the time, the act and the version, and holds the hash of its contents.
The aliases and the versions of a policy follow from the names of its records alone (``state.py``),
so one listing of a folder finds the champion. One rename makes a record, so a kill leaves the old
state or the new one, and no change is without its audit.
"""

from equipoise.registry.artifacts import Incomplete
from equipoise.registry.reading import RegistryReader
from equipoise.registry.records import ALIASES, Record
from equipoise.registry.registry import AliasMoved, Registry, check_alias

__all__ = [
    "ALIASES",
    "AliasMoved",
    "Incomplete",
    "Record",
    "Registry",
    "RegistryReader",
    "check_alias",
]
