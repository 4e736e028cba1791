"""Search a learning rate with Optuna, whose pruner ends the worse runs early, and train with it.

Needs ``pip install optuna``. Run it: ``python examples/with_optuna.py``
"""

import argparse

import optuna

import equipoise as eq
from equipoise import studies


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40_000)
    steps = parser.parse_args().steps
    # without evaluations the score is the mean return of the last episodes, which costs nothing
    program = eq.program("CartPole-v1", "ppo", steps=steps, seed=1, evaluate_episodes=0)

    objective = studies.objective(program, {"optimizer.learning_rate": "log:1e-4..1e-2"})
    search = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=1),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=steps // 4),
    )
    search.optimize(objective, n_trials=4)
    print(
        [f"{one.params['optimizer.learning_rate']:.1e} {one.state.name}" for one in search.trials]
    )

    settings = [f"{key}={value}" for key, value in search.best_params.items()]
    print(eq.train("CartPole-v1", "ppo", steps=steps, seed=2, settings=settings))


if __name__ == "__main__":
    main()
