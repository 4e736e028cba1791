"""A version that answers: its model, and the engine that draws its answers."""

from __future__ import annotations

import asyncio

from equipoise.actors.engine.request_engine import RequestEngine
from equipoise.language.tokenizers import HubTokenizer
from equipoise.serving.chat.model import Model, context_of
from equipoise.serving.chat.settings import TextSettings
from equipoise.serving.chat.templates import Templates
from equipoise.serving.chat.writer import Writer
from equipoise.types.packed import Prompt


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
        tokenizer = model.tokenizer
        self._templates = (
            Templates(tokenizer.directory, model.template)
            if isinstance(tokenizer, HubTokenizer) and tokenizer.has_template
            else None
        )

    def prompt(self, prompt: Prompt) -> list[int]:
        """Return the tokens of a prompt; ValueError if the tokenizer cannot read it."""
        if self._templates is None or isinstance(prompt, str):
            return self.model.tokenizer.prompt(prompt, self.model.template)
        return self._templates(prompt)

    def prepare(self) -> None:
        """Start a process for the chat template, if there is one."""
        if self._templates is not None:
            self._templates.prepare()

    def hurry(self) -> None:
        """End prompts whose chat template is at work."""
        if self._templates is not None:
            self._templates.close()

    def close(self) -> None:
        """End the engine after its present step, and the processes."""
        self.hurry()
        self.writer.close()
