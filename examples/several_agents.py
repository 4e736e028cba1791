"""Train several agents: a speaker and a listener, each with a policy of its own.

Needs ``pip install mpe2``. Run it: ``python examples/several_agents.py``
"""

import argparse

import equipoise as eq


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=320_000)
    steps = parser.parse_args().steps
    run = eq.train(
        "mpe2.simple_speaker_listener_v4:parallel_env",
        policies={"speaker": "ppo", "listener": "ppo"},
        steps=steps,
        seed=1,
        envs_per_actor=16,
        unroll=50,
        settings={"route.speaker_0": "speaker", "route.listener_0": "listener"},
    )
    print(run)
    listener = run.load("listener")
    print(listener)


if __name__ == "__main__":
    main()
