"""Train PPO on CartPole, load the policy and play one episode with it.

Run it: ``python examples/first_run.py``
"""

import argparse

import gymnasium as gym

import equipoise as eq


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    steps = parser.parse_args().steps

    run = eq.train("CartPole-v1", "ppo", steps=steps, seed=1)
    print(run)

    policy = run.load()
    env = gym.make("CartPole-v1")
    obs, _ = env.reset(seed=1)
    total, over = 0.0, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(policy.act(obs))
        total, over = total + float(reward), terminated or truncated
    print(f"return of one episode: {total:.0f}")


if __name__ == "__main__":
    main()
