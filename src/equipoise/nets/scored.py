"""Decoders that score texts: a number for each completion, read from its last token."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from equipoise.foreign import Foreign
from equipoise.nets.decoder import Decoder, DecoderConfig
from equipoise.nets.hub_decoder import HubDecoder
from equipoise.nets.layout import Layout
from equipoise.types.packed import Packed

SCORE = "score.weight"  # the name of the head's weight, as in a ``ForSequenceClassification``


class Scores(Decoder):
    """A decoder with a head of one number in place of the vocabulary's."""

    config: Foreign  # a DecoderConfig or a HubConfig
    head_name: ClassVar[str]  # of the module that is the head

    def scores(self, data: Packed, layout: Layout | None = None) -> Tensor:
        """The score [M] of each sample: the head on the hidden state of its last token.

        The last token is found by the sample's length, whatever token it is.
        """
        layout = Layout.of(data) if layout is None else layout
        last = torch.as_tensor(layout.starts + layout.lengths - 1, device=self.head.device)
        hidden = self.hidden(data, layout).index_select(0, last)
        return self.get_submodule(self.head_name)(hidden).squeeze(1)  # type: ignore[no-any-return]


class ScoredDecoder(Scores):
    """Our decoder with a score."""

    head_name = "score"

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        if not config.tie_word_embeddings:
            del self.lm_head
        self.score = nn.Linear(config.hidden_size, 1, False)
        nn.init.normal_(self.score.weight, std=config.initializer_range)

    @property
    def head(self) -> Tensor:
        """The embedding [vocabulary, hidden]: there are no logits."""
        return self.model.embed_tokens.weight


class HubScored(HubDecoder, Scores):
    """A ``ForSequenceClassification`` of transformers with one label."""

    head_name = "module.score"
    auto = "AutoModelForSequenceClassification"

    @property
    def head(self) -> Tensor:
        """The embedding [vocabulary, hidden]: there are no logits."""
        weight: Tensor = self.module.get_input_embeddings().weight
        return weight

    def logits(self, hidden: Tensor) -> Tensor:
        score: Tensor = self.module.score(hidden)
        return score

    def whole(self, token: Tensor) -> Tensor:
        hidden = self.module.base_model(input_ids=token, use_cache=False).last_hidden_state
        return self.logits(hidden)[0]
