"""Train SAC on continuous control: swing a pendulum up.

Run it: ``python examples/continuous.py``
"""

import argparse

import equipoise as eq
from equipoise.algorithms import SAC


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10_000)
    steps = parser.parse_args().steps
    run = eq.train("Pendulum-v1", SAC(gamma=0.98), steps=steps, seed=1, evaluate_every=steps // 2)
    print(run)
    print(run.evaluate(episodes=10))


if __name__ == "__main__":
    main()
