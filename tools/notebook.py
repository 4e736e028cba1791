"""Execute the notebook of docs/ and keep what its cells print: ``python tools/notebook.py``.

The cells stand here, so that a change of one is a line in a diff and not JSON.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "docs/start/notebook.ipynb"
TEXT, CODE = "markdown", "code"
CELLS: list[tuple[str, str]] = [
    (
        TEXT,
        "# Equipoise in a notebook\n\nAn env that a cell defines, trained on processes; one "
        "picture that is drawn anew in "
        "place; the curve; the policy at work.",
    ),
    (
        CODE,
        '''import gymnasium
import numpy as np

import equipoise as eq


class Corridor(gymnasium.Env):
    """Walk right to the end of a corridor of ten places; every step costs a little."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = 0, 0
        return self._look(), {}

    def step(self, action):
        self.place = max(self.place + (1 if action else -1), 0)
        self.steps += 1
        done = self.place == 10
        return self._look(), 1.0 if done else -0.01, done, self.steps == 100, {}

    def _look(self):
        return np.array([self.place / 10], np.float32)''',
    ),
    (
        TEXT,
        "`eq.train` trains to the end, and shows the run while it trains. The stop button saves "
        "the run; `run.resume()` goes on.",
    ),
    (
        CODE,
        'run = eq.train(Corridor, "ppo", steps=20_000, actors=2, envs_per_actor=8)\nrun',
    ),
    (CODE, "eq.plot(run)"),
    (TEXT, "The policy plays. An observation has the shape that the env gives it."),
    (
        CODE,
        """policy, env = run.load(), Corridor()
obs, _ = env.reset()
steps, ended = 0, False
while not ended:
    obs, reward, terminated, truncated, _ = env.step(policy.act(obs))
    steps, ended = steps + 1, terminated or truncated
print(f"at the end of the corridor after {steps} steps")""",
    ),
]


def executed(place: Path) -> Any:
    """The notebook with what its cells print, executed in a directory; nbclient's
    CellExecutionError where one raises.
    """
    nbformat: Any = importlib.import_module("nbformat")
    from nbclient import NotebookClient

    made = nbformat.v4.new_notebook()
    made.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    for number, (kind, text) in enumerate(CELLS):
        cell = (
            nbformat.v4.new_markdown_cell(text) if kind == TEXT else nbformat.v4.new_code_cell(text)
        )
        cell["id"] = f"cell-{number}"
        made.cells.append(cell)
    NotebookClient(
        made, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(place)}}
    ).execute()
    return made


def main() -> int:
    nbformat: Any = importlib.import_module("nbformat")
    with tempfile.TemporaryDirectory(prefix="equipoise-notebook-") as place:
        made = executed(Path(place))
    for cell in made.cells:
        cell.get("metadata", {}).pop("execution", None)  # times of the day
    FILE.write_text(nbformat.writes(made) + "\n", encoding="utf-8")
    print(f"wrote {FILE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
