"""A lean PPO in one file, in the style of CleanRL, with every lever that Equipoise has: EnvPool,
bfloat16, compiled, channels last.

The yardstick of Pong: what a careful person gets without a framework, on the same work and with our
own torch. One process, one loop: act, step, learn. ``--precision fp32 --eager`` are without the
levers, ``--envs 8 --rollout 128 --minibatches 4`` CleanRL's sizes.
"""

import common
import envpool
import numpy as np
import torch
from torch import nn

from equipoise.nets.precision import native_bf16

parser = common.options(__doc__, ["pong"], envs=64, rollout=32, minibatches=2, epochs=1, threads=2)
parser.add_argument(
    "--precision", choices=["bf16", "fp32"], default="bf16" if native_bf16() else "fp32"
)
parser.add_argument("--eager", action="store_true", help="without torch.compile")
a = parser.parse_args()
GAMMA, LAMBDA, CLIP, ENTROPY, VALUE, MAX_NORM, RATE = 0.99, 0.95, 0.1, 0.01, 0.5, 0.5, 2.5e-4


def orthogonal(layer, gain=2**0.5):
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    def __init__(self, actions):
        super().__init__()
        convs = [
            orthogonal(nn.Conv2d(i, o, k, s))
            for i, o, k, s in ((4, 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1))
        ]
        layers = [x for conv in convs for x in (conv, nn.ReLU())]
        self.torso = nn.Sequential(
            *layers, nn.Flatten(), orthogonal(nn.Linear(3136, 512)), nn.ReLU()
        )
        self.policy, self.value = (
            orthogonal(nn.Linear(512, actions), 0.01),
            orthogonal(nn.Linear(512, 1), 1.0),
        )

    def forward(self, frames):
        """uint8 [N, 4, 84, 84] -> logits [N, A], value [N]."""
        hidden = self.torso(frames.float() / 255.0)
        return self.policy(hidden).float(), self.value(hidden).float().squeeze(-1)


def main():
    torch.manual_seed(1)
    torch.set_num_threads(a.threads)
    envs = envpool.make(
        "Pong-v5", env_type="gymnasium", num_envs=a.envs, num_threads=a.threads, seed=1
    )
    actions, (t, n) = envs.action_space.n, (a.rollout, a.envs)
    agent = Agent(actions).to(memory_format=torch.channels_last)
    forward = agent if a.eager else torch.compile(agent, dynamic=False)
    optimizer = torch.optim.Adam(agent.parameters(), lr=RATE, eps=1e-5, fused=True)
    parameters, window = common.Parameters(agent.named_parameters()), common.Window(a)
    obs = torch.zeros((t, n, 4, 84, 84), dtype=torch.uint8)
    action = torch.zeros((t, n), dtype=torch.long)
    logp, reward, done, value = (torch.zeros((t, n)) for _ in range(4))
    now, ended = torch.as_tensor(envs.reset()[0]), torch.zeros(n)

    def net(frames):
        with torch.autocast("cpu", torch.bfloat16, enabled=a.precision == "bf16"):
            return forward(frames.contiguous(memory_format=torch.channels_last))

    steps = updates = 0
    size = t * n // a.minibatches
    while not window.mark(steps, updates):
        with torch.inference_mode():
            for i in range(t):
                obs[i], done[i] = now, ended
                logits, value[i] = net(now)
                every = torch.log_softmax(logits, -1)
                gumbel = torch.empty_like(every).exponential_().log_().neg_()
                torch.argmax(every + gumbel, -1, out=action[i])
                logp[i] = every.gather(1, action[i].unsqueeze(1)).squeeze(1)
                frames, gain, terminated, truncated, _ = envs.step(
                    action[i].numpy().astype(np.int32)
                )
                reward[i] = torch.as_tensor(np.clip(gain, -1, 1), dtype=torch.float32)
                now, ended = (
                    torch.as_tensor(frames),
                    torch.as_tensor(terminated | truncated).float(),
                )
            following = net(now)[1]
            advantage, last = torch.zeros(t, n), torch.zeros(n)
            for i in reversed(range(t)):
                goes_on = 1.0 - (ended if i == t - 1 else done[i + 1])
                delta = reward[i] + GAMMA * following * goes_on - value[i]
                advantage[i] = last = delta + GAMMA * LAMBDA * goes_on * last
                following = value[i]
        rows = [
            x.reshape(t * n, *x.shape[2:])
            for x in (obs, action, logp, advantage, value, advantage + value)
        ]
        for _ in range(a.epochs):
            for index in torch.randperm(t * n).split(size):
                frames, act, old, adv, before, target = (x[index] for x in rows)
                logits, v = net(frames)
                every = torch.log_softmax(logits, -1)
                ratio = (every.gather(1, act.unsqueeze(1)).squeeze(1) - old).exp()
                adv = (adv - adv.mean()) / (adv.std() + 1e-8)
                policy_loss = torch.maximum(
                    -adv * ratio, -adv * ratio.clamp(1 - CLIP, 1 + CLIP)
                ).mean()
                near = before + (v - before).clamp(-CLIP, CLIP)
                value_loss = (
                    0.5 * torch.maximum((v - target).square(), (near - target).square()).mean()
                )
                entropy = -(every.exp() * every).sum(-1).mean()
                optimizer.zero_grad(set_to_none=True)
                (policy_loss + VALUE * value_loss - ENTROPY * entropy).backward()
                nn.utils.clip_grad_norm_(agent.parameters(), MAX_NORM)
                optimizer.step()
                updates += 1
        steps += t * n
    common.emit(
        a,
        "torch",
        window,
        parameters,
        env="envpool:Pong-v5",
        observation=(4, 84, 84),
        actions=actions,
        minibatch=size,
        frame_skip=4,
        sticky=0.0,
        precision=a.precision,
    )


if __name__ == "__main__":
    main()
