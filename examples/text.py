"""Train a small language model from rewards: GRPO learns to sort six digits.

Run it: ``python examples/text.py``
"""

import argparse

import equipoise as eq


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=None, help="samples in all")
    steps = parser.parse_args().steps
    more = {} if steps is None else {"steps": steps}  # without, the recipe's number
    run = eq.train(task="sort", model="tiny", algorithm="grpo", seed=1, **more)
    print(run)
    print(eq.generate(run.directory, ["201102>"], greedy=True))


if __name__ == "__main__":
    main()
