"""Make the memory and the passes that fit an engine's network."""

from __future__ import annotations

from equipoise.nets import lora
from equipoise.nets.decoder import Decoder
from equipoise.nets.decoding import Decoding, Exact
from equipoise.nets.hub_decoder import HubDecoder, HubDecoding
from equipoise.nets.precision import rounded_products
from equipoise.types import Precision

AnyRoom = Decoding | Exact | HubDecoding


def rounded(net: Decoder, precision: Precision) -> Decoder:
    """The network as an engine draws with it in this precision: a copy whose products are rounded,
    or ``net`` itself. Networks with adapters stay float32, since small ones would be rounded away.
    """
    if net.batch_invariant or lora.layers_of(net):
        return net
    return rounded_products(net, net.head, precision)


def make_room(net: Decoder, rows: int, length: int, *, pages: int = 0) -> AnyRoom:
    """The room of ``rows`` texts of at most ``length`` tokens; ``pages`` as in ``Room``."""
    if isinstance(net, HubDecoder):
        return net.decoding(rows, length)
    if net.batch_invariant:
        exact = Exact(net, rows, length, pages=pages)
        exact.check()
        return exact
    return Decoding(net, rows, length, pages=pages)
