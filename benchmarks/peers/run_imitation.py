"""Pairs/s of fitting a reward ensemble by the package imitation: one pass, printed as JSON."""

import json
import sys
import time

import numpy as np
import torch
from gymnasium import spaces
from imitation.algorithms import preference_comparisons as pc
from imitation.data.types import TrajectoryWithRew
from imitation.rewards import reward_nets

pairs, rows, members = (int(x) for x in sys.argv[1:4])
torch.set_num_threads(1)
rng = np.random.default_rng(0)
obs_space = spaces.Box(-8, 8, (3,), np.float32)
act_space = spaces.Box(-2, 2, (1,), np.float32)


def fragment():
    obs = rng.normal(size=(rows + 1, 3)).astype(np.float32)
    acts = rng.normal(size=(rows, 1)).astype(np.float32)
    return TrajectoryWithRew(obs, acts, None, False, obs[:-1, 0])


def make():
    return reward_nets.BasicRewardNet(
        obs_space, act_space, use_next_state=False, hid_sizes=(64, 64)
    )


net = reward_nets.RewardEnsemble(obs_space, act_space, [make() for _ in range(members)])
dataset = pc.PreferenceDataset()
fragments = [(fragment(), fragment()) for _ in range(pairs)]
dataset.push(fragments, rng.integers(0, 2, pairs).astype(np.float32))
trainer = pc.EnsembleTrainer(
    pc.PreferenceModel(net),
    pc.CrossEntropyRewardLoss(),
    rng,
    batch_size=64,
    epochs=1,
)
began, cpu = time.perf_counter(), time.process_time()
trainer.train(dataset)
print(
    json.dumps(
        {
            "pairs_s": pairs / (time.perf_counter() - began),
            "cpu_us": (time.process_time() - cpu) / pairs * 1e6,
        }
    )
)
