"""Names of our own device envs, for what lists them without loading torch."""

from __future__ import annotations

NAMES: dict[str, str] = {  # the module of each name; imported when it is made
    "cartpole": "equipoise.device_envs.cartpole:CartPole",
    "pendulum": "equipoise.device_envs.pendulum:Pendulum",
    "rooms": "equipoise.device_envs.rooms:Rooms",
    "bricks": "equipoise.device_envs.bricks:Bricks",
    "reacher": "equipoise.device_envs.reacher:Reacher",
}
