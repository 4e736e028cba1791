"""Settings of ``equipoise serve`` for language models, without slow imports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from equipoise.facts import Flag, Help, Range

TEXT = "For a language model"
Count = Annotated[int, Range(1, 1e6)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSettings:
    """Settings that only a language model has."""

    version: Annotated[
        str,
        Help("Checkpoint of a run to serve, such as step_1000"),
        Flag(TEXT, "STEP"),
    ] = ""
    name: Annotated[
        str,
        Help("Model name in requests (default: the folder's)"),
        Flag(TEXT, "NAME", "model-name"),
    ] = ""
    base: Annotated[
        str,
        Help("Folder of the model that adapters belong to"),
        Flag(TEXT, "DIR"),
    ] = ""
    context: Annotated[
        Annotated[int, Range(2, 1e7)] | None,
        Help("Most tokens of a prompt and its answer (default: to 4096)"),
        Flag(TEXT),
    ] = None
    queue: Annotated[
        Count, Help("Most answers that wait; further requests get 429"), Flag(TEXT)
    ] = 256
    device: Annotated[str, Help("Device of the model, such as cuda"), Flag(TEXT, "NAME")] = "cpu"
