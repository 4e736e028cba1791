"""Make the memory and the passes that fit an engine's network."""

from __future__ import annotations

from equipoise.nets.decoder import Decoder
from equipoise.nets.decoding import Decoding, Exact
from equipoise.nets.hub_decoder import HubDecoder, HubDecoding
from equipoise.types import Precision

AnyRoom = Decoding | Exact | HubDecoding


def make_room(
    net: Decoder, rows: int, length: int, precision: Precision, *, pages: int = 0
) -> AnyRoom:
    """The room of ``rows`` texts of at most ``length`` tokens; ``precision`` and ``pages`` as in
    ``decoding.Room``.
    """
    if isinstance(net, HubDecoder):
        return net.decoding(rows, length, precision)
    if net.batch_invariant:
        exact = Exact(net, rows, length, pages=pages)
        exact.check()
        return exact
    return Decoding(net, rows, length, pages=pages, precision=precision)
