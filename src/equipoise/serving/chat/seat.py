"""A version that answers: its model, and the engine that draws its answers."""

from __future__ import annotations

import asyncio

from equipoise.actors.engine.request_engine import RequestEngine
from equipoise.serving.chat.model import Model, context_of
from equipoise.serving.chat.settings import TextSettings
from equipoise.serving.chat.writer import Writer


class Seat:
    """A model with its writer, which ``writer.start`` starts."""

    def __init__(
        self,
        model: Model,
        settings: TextSettings,
        loop: asyncio.AbstractEventLoop,
        *,
        rows: int,
        seed: int,
        engines: int = 1,
    ) -> None:
        """``rows``: choices that are drawn at the same time; ``engines``: how many of this size
        must fit into memory. ValueError if they do not.
        """
        self.model, self.open = model, 0  # choices that were asked for and have not ended
        self.context = context_of(model, settings, rows * engines)
        net = model.net.to(settings.device)
        engine = RequestEngine(
            net, rows=rows, length=self.context, eos=model.tokenizer.eos, seed=seed
        )
        if model.source is not None:
            engine.make_room()
        self.writer = Writer(engine, model.tokenizer.decode, model.version, loop)
