"""TorchRL's PPO (ClipPPOLoss, GAE, a collector), one pass: env steps/s after the warm-up, learning
included.
"""

import common
import torch
from torch import nn

# envs of both workers, rows collected, minibatch
CASES = {"cartpole": (16, 4096, 2048), "halfcheetah": (16, 4096, 2048)}
parser = common.options(__doc__, CASES, envs=0, frames=0, batch=0, threads=1)
parser.add_argument(
    "--collector",
    choices=["sync", "multi"],
    default="multi",
    help="multi: two processes that collect",
)
a = parser.parse_args()
envs, frames, batch = CASES[a.case]
a.envs, a.frames, a.batch = a.envs or envs, a.frames or frames, a.batch or batch


def make_env(count):
    from torchrl.envs import DoubleToFloat, GymEnv, SerialEnv, TransformedEnv

    def one():
        return TransformedEnv(
            GymEnv(common.ENVS[a.case], categorical_action_encoding=True), DoubleToFloat()
        )

    return SerialEnv(count, one)


def make_both():
    return make_env(a.envs)


def make_half():
    return make_env(a.envs // 2)


class Gaussian(nn.Module):
    def __init__(self, actions):
        super().__init__()
        self.mean, self.log_std = nn.Linear(64, actions), nn.Parameter(torch.zeros(actions))

    def forward(self, x):
        mean = self.mean(x)
        return mean, self.log_std.exp().expand_as(mean)


def make_policy(probe):
    from tensordict.nn import TensorDictModule
    from torchrl.modules import ActorValueOperator, ProbabilisticActor, TanhNormal, ValueOperator

    continuous = a.case == "halfcheetah"
    size = probe.observation_spec["observation"].shape[-1]
    actions = probe.action_spec.shape[-1] if continuous else probe.action_spec.space.n
    torso = nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())

    common_part = TensorDictModule(torso, in_keys=["observation"], out_keys=["hidden"])
    if continuous:
        low, high = probe.action_spec.space.low[0], probe.action_spec.space.high[0]
        head = TensorDictModule(Gaussian(actions), in_keys=["hidden"], out_keys=["loc", "scale"])
        actor = ProbabilisticActor(
            head,
            in_keys=["loc", "scale"],
            distribution_class=TanhNormal,
            return_log_prob=True,
            distribution_kwargs=dict(low=low, high=high),
        )
    else:
        head = TensorDictModule(nn.Linear(64, actions), in_keys=["hidden"], out_keys=["logits"])
        actor = ProbabilisticActor(
            head,
            in_keys=["logits"],
            distribution_class=torch.distributions.Categorical,
            return_log_prob=True,
        )
    value = ValueOperator(nn.Linear(64, 1), in_keys=["hidden"])
    return ActorValueOperator(common_part, actor, value), size, int(actions)


def main():
    from torchrl.collectors import Collector, MultiSyncCollector
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    torch.set_num_threads(a.threads)
    window = common.Window(a)
    both, size, actions = make_policy(make_env(1))
    actor, critic = both.get_policy_operator(), both.get_value_operator()
    parameters = common.Parameters(both.named_parameters())
    loss_module = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=0.2,
        entropy_coeff=0.0,
        critic_coeff=0.5,
        normalize_advantage=True,
    )
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=False)
    optimizer = torch.optim.Adam(both.parameters(), lr=3e-4)
    common_options = dict(policy=actor, frames_per_batch=a.frames, total_frames=-1, device="cpu")
    if a.collector == "multi":
        collector = MultiSyncCollector([make_half, make_half], **common_options)
    else:
        collector = Collector(make_both, **common_options)
    steps = updates = 0
    for data in collector:
        with torch.no_grad():
            advantage(data)
        flat = data.reshape(-1)
        for index in torch.randperm(len(flat)).split(a.batch):
            losses = loss_module(flat[index])
            loss = losses["loss_objective"] + losses["loss_critic"]
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(both.parameters(), 0.5)
            optimizer.step()
            updates += 1
        collector.update_policy_weights_()
        steps += len(flat)
        if window.mark(steps, updates):
            break
    common.emit(
        a,
        "torchrl",
        window,
        parameters,
        env=common.ENVS[a.case],
        observation=[size],
        actions=actions,
        minibatch=min(a.batch, a.frames),
    )
    collector.shutdown()


if __name__ == "__main__":
    main()
