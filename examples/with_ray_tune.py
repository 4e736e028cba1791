"""Search a learning rate with Ray Tune, which ends the worse runs early, and train with it.

Needs ``pip install 'equipoise[ray]' 'ray[tune]'``. Run it: ``python examples/with_ray_tune.py``
"""

import argparse

from ray import tune

import equipoise as eq
from equipoise import studies


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40_000)
    steps = parser.parse_args().steps
    # without evaluations the score is the mean return of the last episodes, which costs nothing
    program = eq.program("CartPole-v1", "ppo", steps=steps, seed=1, evaluate_episodes=0)

    asha = tune.schedulers.ASHAScheduler(
        time_attr="env_steps", max_t=steps, grace_period=max(steps // 4, 1)
    )
    tuner = tune.Tuner(
        studies.trainable(program),
        param_space={"optimizer.learning_rate": tune.loguniform(1e-4, 1e-2)},
        tune_config=tune.TuneConfig(metric="score", mode="max", num_samples=4, scheduler=asha),
        run_config=tune.RunConfig(verbose=0),
    )
    best = tuner.fit().get_best_result()
    print(best.config, best.metrics["score"])

    settings = [f"{key}={value}" for key, value in best.config.items()]
    print(eq.train("CartPole-v1", "ppo", steps=steps, seed=2, settings=settings))


if __name__ == "__main__":
    main()
