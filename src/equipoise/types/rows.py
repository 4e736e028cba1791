"""Rows: the nouns of the ring as dataclasses. Their alignment is given here, and in no other place.

Letters used in every shape of the project: ``T`` time steps of an unroll, ``B`` streams (one stream
is one sequence of episodes), ``N`` rows of a minibatch. Nothing here imports torch, so that a
worker that only steps envs stays small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import gymnasium
    import numpy as np
    import numpy.typing as npt

Array = Any  # a torch tensor or a numpy array; their union would need a check at every use
Tree = Any  # Array | dict[str, Tree]: plain nested dicts, no container class to learn
Resume = Literal["exact", "replay", "restart"]
Precision = Literal["fp32", "medium", "tf32", "bf16", "fp16"]
# the names for each kind of device; "medium" is the "tf32" of a GPU
PRECISIONS: Mapping[str, tuple[Precision, ...]] = {
    "cpu": ("fp32", "medium", "bf16"),
    "cuda": ("fp32", "tf32", "bf16", "fp16"),
}
# in one thread, in processes of one machine, over the machines of a cluster
On = Literal["serial", "process", "ray"]
Inference = Literal["local", "central"]
Balance = Literal["off", "auto"]
ActingPrecision = Literal["fp32", "bf16", "int8"]
Shard = Literal["none", "fsdp", "tensor"]
TextPlacement = Literal["apart", "together", "elastic"]
OnNonfinite = Literal["stop", "drop", "clamp"]


class Tick(Enum):
    """The outcome of one bounded piece of work; seconds in each give a run's balance."""

    WORKED = "worked"
    STARVED = "starved"  # upstream is slower
    BLOCKED = "blocked"  # downstream is slower


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeStep:
    """The newest row of B streams.

    ``reward``, ``terminated``, ``truncated`` and ``valid`` are the outcome of the last action;
    ``obs`` and ``first`` are the inputs of the next action. The arrays may be overwritten by the
    next ``recv``: a reader copies what it keeps.
    """

    obs: Tree  # [B, ...]
    reward: Array  # [B] float32, for the action just taken
    terminated: Array  # [B] bool, the MDP ended
    truncated: Array  # [B] bool, a clock cut it
    first: Array  # [B] bool, obs begins an episode: reset recurrent state
    # [B] bool, False: the action was ignored (reset row, aborted episode, absent agent, another
    # stream's hold)
    valid: Array
    stream: Array  # [B] int64, which streams these rows are
    # [B, ...] the actions that were really taken, in a policy's form, if an env may report them
    taken: Tree | None = None
    differs: Array | None = None  # [B] bool, the rows whose action was another than the one sent
    # [B, M] float64, the numbers of Program.metrics from the last step, nan if absent
    info: Array | None = None
    # [B] bool, the new rows; other rows carry no information. None: all of them are
    answered: Array | None = None
    # [B, ...] of a SAME_STEP device env: the last observation of the episodes that ended here
    final: Tree | None = None

    def rows(self) -> dict[str, Tree]:
        """The arrays that every row has, by name."""
        return {
            "obs": self.obs,
            "reward": self.reward,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "first": self.first,
            "valid": self.valid,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """An observation that is the last ``frames`` screens along its first axis, the newest last."""

    frames: int
    # frames before an episode's first: black, or that frame repeated
    padding: Literal["zero", "first"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """The facts about an env that a network and a slot need, for one policy."""

    observation: gymnasium.Space[object]  # of one stream
    action: gymnasium.Space[object]  # of one stream
    # the keys in the observation under which the allowed actions stand; (): all are allowed
    mask: tuple[str, ...] = ()
    resume: Resume = "restart"
    frame_skip: int = 1  # frames = frame_skip * steps
    # by the path of the observation's leaf, "" if it is one array
    stacks: Mapping[str, Stack] = field(default_factory=dict)
    # facts that an adapter could not preserve, e.g. "truncation treated as termination"
    notes: tuple[str, ...] = ()
    settings: str = ""  # settings in words, for a family with a spec of its own
    # agents of one env; agent a of env e is stream e * len(agents) + a
    agents: tuple[str, ...] = ("",)
    places: tuple[int, ...] = (0,)  # places of the agents that the policy acts for


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """The spec of an env, and the spec of each policy that acts in it."""

    # EnvSpec or TextSpec: the common part of all policies (agents, resume, frame_skip, notes,
    # settings)
    env: Any
    policies: Mapping[str, Any]  # the same kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """Row t: seen ``obs[t]``, done ``action[t]``, got ``reward[t]``. The next has obs[T]."""

    obs: Tree  # [T+1, B, ...], obs[T] only bootstraps
    first: Array  # [T+1, B] bool
    action: Tree  # [T, B, ...]
    behaviour: Tree  # [T, B, ...] what the corrections need, e.g. {"logp": [T, B]}
    reward: Array  # [T, B] float32, for action[t]
    mask: Array  # [T, B] bool, False: not a real row (a seam)
    bootstrap: Array  # [T, B] bool, may the value of obs[t+1] be used after this row
    version: Array  # [T, B] int64, the weights that chose action[t]
    state: Tree  # [B, ...] recurrent state before obs[0]
    context: Tree  # [B, ...] always {"stream", "start"}; start: the stream's row number of row 0

    def discount(self, gamma: float) -> Array:
        """[T, B], ``gamma`` if the value of the next observation may be used, else 0."""
        return gamma * self.bootstrap

    def fields(self) -> dict[str, Tree]:
        """The fields by name: a tree whose leaves are this trajectory's arrays."""
        return {name: getattr(self, name) for name in self.__slots__}

    @property
    def shape(self) -> tuple[int, int]:
        """(T, B)."""
        return int(self.reward.shape[0]), int(self.reward.shape[1])


def by_field(data: Any) -> dict[str, Tree]:
    """The fields of a Trajectory or a Packed, by name."""
    return {name: getattr(data, name) for name in type(data).__slots__}


TRAJECTORY_ROWS = ("action", "behaviour", "reward", "mask", "bootstrap", "version")  # [T, B, ...]
TRAJECTORY_EDGES = ("obs", "first")  # [T+1, B, ...]
TRAJECTORY_STREAMS = ("state", "context")  # [B, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The input of a learner's step. A minibatch by rows has T = 1 and obs [1, N, ...]."""

    data: Any  # a Trajectory; a Packed if text is learned from
    keys: Array  # [B, 2] int64, (row, generation) of each item; they go back to Experience.finish
    weight: Array  # [B] float32, 1 from a queue, the importance weight from prioritized replay
    # [T, B], or [N] of a Packed: the result of Learns.targets, computed once, else {}
    targets: Tree
    # of the weights, until the batch's first optimiser step changes them; then -1
    version: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """The place of one unroll: preallocated views, filled in place."""

    keys: Array  # [E, 2] int64, (row, generation) of each env
    data: Trajectory


def stream_ids(group: int, envs: int) -> npt.NDArray[np.int64]:
    """[E] int64, the envs of one group; if an env has one agent they are its streams."""
    import numpy as np

    return np.arange(group * envs, (group + 1) * envs, dtype=np.int64)


def agent_streams(
    envs: Array, agents: int = 1, places: Sequence[int] = (0,)
) -> npt.NDArray[np.int64]:
    """[E * len(places)] int64, env by env: the streams of the agents at ``places``."""
    import numpy as np

    return (np.asarray(envs, np.int64)[:, None] * agents + np.asarray(places, np.int64)).reshape(-1)
