"""Names of our own device envs, for what lists them without loading torch."""

from __future__ import annotations

WORLDS: dict[str, str] = {  # where each is; imported when it is made
    "cartpole": "equipoise.worlds.cartpole:CartPole",
    "pendulum": "equipoise.worlds.pendulum:Pendulum",
    "rooms": "equipoise.worlds.rooms:Rooms",
    "bricks": "equipoise.worlds.bricks:Bricks",
    "reacher": "equipoise.worlds.reacher:Reacher",
}
