"""Write ``requirements.lock``: one set of versions for every platform and Python that the project
supports.

    .venv/bin/python tools/lock.py [--upgrade]

Versions that are locked stay, unless ``--upgrade`` is given. Why the lock has no hashes and nothing
of CUDA: docs/inside/decisions/0001-one-lock-without-hashes.md.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bootstrap import LOCK, ROOT

TORCH = "2.13.0"
CUDA = re.compile(r"^(?:nvidia|cuda|triton)\b[\w-]*", re.MULTILINE)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        uv = shutil.which("uv") or install_uv(Path(folder))
        # Only a resolver knows what torch asks for on each platform, so the first pass finds out
        # and the second leaves it out.
        everything = resolve(uv, Path(folder), excluded=[])
        locked = resolve(uv, Path(folder), excluded=CUDA.findall(everything))
    header = (
        "# Made by `make lock`; tools/bootstrap.py installs it. Torch comes first and by "
        "itself: docs/inside/decisions/0001.\n"
    )
    LOCK.write_text(header + locked, encoding="utf-8")
    print(f"{LOCK.name}: {len(locked.splitlines())} packages")


def install_uv(folder: Path) -> str:
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, "uv"], check=True
    )
    return str(folder / "bin" / "uv")


def resolve(uv: str, folder: Path, excluded: list[str]) -> str:
    excludes, constraints, out = (
        folder / "excludes.txt",
        folder / "constraints.txt",
        folder / "lock.txt",
    )
    excludes.write_text("\n".join(excluded))
    constraints.write_text(f"torch=={TORCH}\n")
    if LOCK.exists() and "--upgrade" not in sys.argv:
        # uv prefers what its output file holds
        out.write_text(LOCK.read_text(encoding="utf-8"), encoding="utf-8")
    command = [
        uv,
        "pip",
        "compile",
        "pyproject.toml",
        "--extra",
        "dev",
        "--universal",
        "--python-version",
        "3.11",
    ]
    command += ["--fork-strategy", "fewest", "--no-header", "--no-annotate", "--quiet"]
    command += [
        "--excludes",
        str(excludes),
        "--constraints",
        str(constraints),
        "--output-file",
        str(out),
    ]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return out.read_text(encoding="utf-8")


if __name__ == "__main__":
    main()
