"""Ship a policy: train, export it as ONNX, and ask it without torch.

Needs ``pip install 'equipoise[export]'``. Run it: ``python examples/ship.py``
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import equipoise as eq


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60_000)
    steps = parser.parse_args().steps
    run = eq.train("CartPole-v1", "ppo", steps=steps, seed=1)
    print(run)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "artifact"
        eq.export(run.directory, place)
        print(sorted(path.name for path in place.iterdir()))
        # edge.py stands in the artifact: numpy and onnxruntime are all that it imports
        code = "from edge import EdgePolicy; print(EdgePolicy('.').act([0.0, 0.1, 0.0, 0.2]))"
        subprocess.run([sys.executable, "-c", code], cwd=place, check=True)


if __name__ == "__main__":
    main()
