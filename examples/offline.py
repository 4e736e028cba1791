"""Learn from recorded data: train an expert, record it, and clone it without an env.

Needs ``pip install minari h5py``. Run it: ``python examples/offline.py``
"""

import argparse
import tempfile

import equipoise as eq


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60_000)
    steps = parser.parse_args().steps
    expert = eq.train("CartPole-v1", "ppo", steps=steps, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        data = f"{folder}/cartpole-expert"
        print(eq.collect(expert.directory, data, episodes=20))
        # steps of a run on recorded data are updates
        clone = eq.train("CartPole-v1", "bc", dataset=data, steps=max(steps // 60, 10), seed=1)
    print(expert.evaluate(episodes=20))
    print(clone.evaluate(episodes=20))


if __name__ == "__main__":
    main()
