"""A decoder that scores texts: a number for each completion, read from its last token."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from equipoise.nets.decoder import Decoder, DecoderConfig
from equipoise.nets.layout import Layout
from equipoise.types.packed import Packed

SCORE = "score.weight"  # the name of the head's weight, as in a ``ForSequenceClassification``


class ScoredDecoder(Decoder):
    """A decoder with a head of one number in place of the vocabulary's."""

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

    def scores(self, data: Packed, layout: Layout | None = None) -> Tensor:
        """The score [M] of each sample: the head on the hidden state of its last token.

        The last token is found by the sample's length, whatever token it is.
        """
        layout = Layout.of(data) if layout is None else layout
        last = torch.as_tensor(layout.starts + layout.lengths - 1, device=self.head.device)
        hidden = self.hidden(data, layout).index_select(0, last)
        return self.score(hidden).squeeze(1)  # type: ignore[no-any-return]
