"""Rows/s into and out of one library's replay, one thread: run_replay.py ours|sb3|torchrl|cpprb
vectors|frames [--prioritized].

Data: vectors are 17 + 6 random floats; frames are stacks of a real Pong run (``--frames FILE.npz``,
from benchmarks/replay.py). ``insert`` is told with the rows of a call, ``sample`` in items of a
batch of 256, ``update`` is a sample and its new priorities. The replay is full before anything is
sampled; ``memory_mib`` is what the process grew by from the end of all imports until then. The last
line is JSON.

What an insertion is timed from and to is the same for all: the rows of a call lie in numpy arrays,
in the shape that the library takes, as an actor would have collected them, and are copied into the
replay. For the peers that is ``add`` or ``extend``; for ours ``Replay.insert`` of a block [T, 16
streams], the trajectory being what an actor's slot holds. Neither how rows come into these arrays
is timed, nor how they go from process to process.
"""

import argparse
import importlib
import json
import os
import statistics
import time

import numpy as np

BATCH = 256
parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("library", choices=["ours", "sb3", "torchrl", "cpprb"])
parser.add_argument("data", choices=["vectors", "frames"])
parser.add_argument("--prioritized", action="store_true")
parser.add_argument("--frames", help="of benchmarks/replay.py")
parser.add_argument(
    "--rows", type=int, default=0, help="a call; default: 256 vectors, 16 frames (streams x steps)"
)
parser.add_argument("--seconds", type=float, default=2.0)
a = parser.parse_args()
CAPACITY = 1_000_000 if a.data == "vectors" else 100_000
STREAMS, ROWS = 16, a.rows or (256 if a.data == "vectors" else 16)
rng = np.random.default_rng(0)
if a.data == "vectors":
    obs = rng.normal(size=(64, ROWS + 1, 17)).astype(np.float32)
    action = rng.normal(size=(ROWS, 6)).astype(np.float32)
else:
    pong = np.load(a.frames)["stacks"]  # [steps, streams, 4, 84, 84]
    action = rng.integers(0, 6, ROWS)
reward, done = rng.normal(size=ROWS).astype(np.float32), np.zeros(ROWS, np.float32)


def call(i):
    """(obs, next obs), [rows, ...] each."""
    if a.data == "vectors":
        return obs[i % 64, :-1], obs[i % 64, 1:]
    at = i % (len(pong) - 1)
    return pong[at, :ROWS], pong[at + 1, :ROWS]


def ours():
    from equipoise.experience.layout import RowSpec
    from equipoise.experience.replay.plan import ReplayPlan
    from equipoise.experience.replay.replay import Replay
    from equipoise.experience.replay.feed import ReplayFeed
    from equipoise.tree import ArraySpec
    from equipoise.types import ReplaySettings as Settings
    from equipoise.types import Stack, Trajectory

    steps = ROWS // STREAMS
    stream = {"stream": ArraySpec((), "int64"), "start": ArraySpec((), "int64")}
    shape = ((17,), "float32") if a.data == "vectors" else ((4, 84, 84), "uint8")
    acts = ArraySpec((6,), "float32") if a.data == "vectors" else ArraySpec((), "int64")
    plan = ReplayPlan(
        settings=Settings(
            capacity=CAPACITY, starts_at=0, selector="prioritized" if a.prioritized else "uniform"
        ),
        row=RowSpec(obs=ArraySpec(*shape), action=acts, behaviour={}, state={}, context=stream),
        unroll=steps,
        window=1,
        block=STREAMS,
        actors=1,
        span=STREAMS,
        rounds=100,
        stacks={"": Stack(frames=4, padding="zero")} if len(shape[0]) > 1 else {},
    )
    made = Replay(plan, ReplayFeed(None), "main", seed=0)
    made._rounds.owed = 1 << 60  # no limiter: the calls are timed apart
    first = np.zeros((steps + 1, STREAMS), bool)
    start, streams, unroll = (
        np.zeros(STREAMS, np.int64),
        np.arange(STREAMS),
        np.full(STREAMS, steps),
    )
    if a.data == "vectors":  # each row's next observation is the next row's of its stream
        blocks = [np.resize(x, (steps + 1, STREAMS, 17)) for x in obs]
    else:
        blocks = [pong[at : at + steps + 1] for at in range(len(pong) - steps)]
    slots = [
        Trajectory(
            obs=x,
            first=first,
            action=action.reshape(steps, STREAMS, *acts.shape),
            behaviour={},
            state={},
            reward=reward.reshape(steps, STREAMS),
            mask=~first[1:],
            bootstrap=~first[1:],
            version=np.zeros((steps, STREAMS), np.int64),
            context={"stream": streams, "start": start},
        )
        for x in blocks
    ]

    def insert(i):
        made.insert(slots[i % len(slots)])
        np.add(start, unroll, out=start)

    def update():
        batch = made.sample(BATCH)
        made.learned(batch.keys, rng.random(BATCH))

    return insert, lambda: made.sample(BATCH), update


def sb3():
    import gymnasium as gym
    from stable_baselines3.common.buffers import ReplayBuffer

    observation = (
        gym.spaces.Box(-9, 9, (17,))
        if a.data == "vectors"
        else gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    )
    acts = gym.spaces.Box(-1, 1, (6,)) if a.data == "vectors" else gym.spaces.Discrete(6)
    made = ReplayBuffer(
        CAPACITY,
        observation,
        acts,
        device="cpu",
        n_envs=ROWS,
        optimize_memory_usage=a.data == "frames",
        handle_timeout_termination=False,
    )
    infos = [{}] * ROWS
    shaped = action.reshape(ROWS, -1)
    return (
        lambda i: made.add(*call(i), shaped, reward, done, infos),
        lambda: made.sample(BATCH),
        None,
    )


def torchrl():
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    made = TensorDictReplayBuffer(storage=LazyTensorStorage(CAPACITY), batch_size=BATCH)

    def insert(i):
        now, then = (torch.from_numpy(x) for x in call(i))
        after = TensorDict(
            {"obs": then, "reward": torch.from_numpy(reward), "done": torch.from_numpy(done)},
            [ROWS],
        )
        made.extend(
            TensorDict({"obs": now, "action": torch.from_numpy(action), "next": after}, [ROWS])
        )

    return insert, made.sample, None


def cpprb():
    import cpprb

    fields = {
        "obs": {"shape": (17,), "dtype": np.float32},
        "act": {"shape": action.shape[1:] or 1, "dtype": action.dtype},
    }
    fields |= {"rew": {}, "done": {}}
    options = {}
    if a.data == "frames":
        fields["obs"] = {"shape": (84, 84, 4), "dtype": np.uint8}
        options = {"next_of": "obs", "stack_compress": "obs"}
    else:
        fields["next_obs"] = fields["obs"]
    kind = cpprb.PrioritizedReplayBuffer if a.prioritized else cpprb.ReplayBuffer
    made = kind(CAPACITY, fields, **(options | ({"alpha": 0.6} if a.prioritized else {})))

    def insert(i):
        now, then = call(i)
        if a.data == "frames":
            now, then = np.moveaxis(now, 1, -1), np.moveaxis(then, 1, -1)
        made.add(obs=now, act=action, rew=reward, done=done, next_obs=then)

    def update():
        batch = made.sample(BATCH, 0.4)
        made.update_priorities(batch["indexes"], rng.random(BATCH).astype(np.float32))

    return (
        insert,
        (lambda: made.sample(BATCH, 0.4)) if a.prioritized else (lambda: made.sample(BATCH)),
        update,
    )


def rss_mib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))


def rate(call, rows):
    """Rows/s, the median of fifths of the time."""
    found = []
    for _ in range(5):
        done, began = 0, time.perf_counter()
        while (took := time.perf_counter() - began) < a.seconds / 5:
            call(done)
            done += 1
        found.append(done * rows / took)
    return statistics.median(found)


if a.data == "frames":
    pong[:2].sum()  # touched, before memory is looked at
IMPORTS = {
    "ours": ["torch", "equipoise.experience.replay.replay"],
    "sb3": ["stable_baselines3.common.buffers"],
    "torchrl": ["torchrl.data", "tensordict"],
    "cpprb": ["cpprb"],
}
for module in IMPORTS[a.library]:  # a library is no part of its replay's memory
    importlib.import_module(module)
before = rss_mib()
insert, sample, update = {"ours": ours, "sb3": sb3, "torchrl": torchrl, "cpprb": cpprb}[a.library]()
for i in range(CAPACITY // ROWS):
    insert(i)
memory = rss_mib() - before
result = {"insert": rate(insert, ROWS), "sample": rate(lambda _: sample(), BATCH)}
if a.prioritized:
    result["update"] = rate(lambda _: update(), BATCH)
print(
    json.dumps(
        {
            "value": result["sample"],
            "memory_mib": round(memory),
            "rows_a_call": ROWS,
            "pid": os.getpid(),
            **result,
        }
    )
)
