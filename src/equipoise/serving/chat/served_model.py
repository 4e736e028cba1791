"""A version that answers: its model, and the engine that draws its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from equipoise.actors.engine.request_engine import RequestEngine
from equipoise.language.tokenizers import HubTokenizer
from equipoise.serving.chat.model import Model, context_of
from equipoise.serving.chat.settings import TextSettings
from equipoise.serving.chat.templates import Templates
from equipoise.serving.chat.writer import Failed, Reply, Writer
from equipoise.types.packed import Prompt


class AnswerWriter(Protocol):
    """The writer of answers, as ``Writer``."""

    drawn: int

    @property
    def version(self) -> str: ...
    @property
    def live(self) -> int: ...
    def start(self) -> None: ...
    def close(self) -> None: ...
    def write(self, reply: Reply) -> None: ...
    def cancel(self, reply: Reply) -> None: ...
    def offer(self, version: str, params: Mapping[str, Tensor], failed: Failed) -> None: ...


class ServedModel:
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
        writer: AnswerWriter | None = None,
    ) -> None:
        """``rows``: choices that are drawn at the same time; ``engines``: how many of this size
        must fit into memory; ``writer``: None: one with an engine of its own. ValueError if they
        do not fit.
        """
        self.model, self.open = model, 0  # choices that were asked for and have not ended
        self.context = context_of(model, settings, rows * engines)
        self.writer = writer or self._made_writer(settings.device, loop, rows, seed)
        tokenizer = model.tokenizer
        self._templates = (
            Templates(tokenizer.directory)
            if isinstance(tokenizer, HubTokenizer) and tokenizer.has_template
            else None
        )

    def _made_writer(
        self, device: str, loop: asyncio.AbstractEventLoop, rows: int, seed: int
    ) -> Writer:
        model = self.model
        net = model.net.to(device)
        engine = RequestEngine(
            net, rows=rows, length=self.context, eos=model.tokenizer.eos, seed=seed
        )
        if model.source is not None:
            engine.make_room()
        return Writer(engine, model.tokenizer.decode, model.version, loop)

    def prompt(self, prompt: Prompt, template: Mapping[str, object]) -> list[int]:
        """Return the tokens of a prompt; ValueError if the tokenizer cannot read it. ``template``:
        further arguments of the chat template.
        """
        template = {**self.model.template, **template}
        if self._templates is None or isinstance(prompt, str):
            return self.model.tokenizer.prompt(prompt, template)
        return self._templates(prompt, template)

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
