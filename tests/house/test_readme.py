"""The README is short, and its blocks run when they are pasted from top to bottom in a clone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MOST_WORDS = 600


def test_the_readme_is_short() -> None:
    words = re.findall(r"[\w'.,/-]*\w[\w'.,/-]*", re.sub(r"\]\([^)]*\)|<[^>]*>", "", README))
    assert len(words) <= MOST_WORDS, f"{len(words)} words"


def test_each_link_of_the_readme_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)|(?:src|srcset)=\"([^\"]+)\"", README)
    missing = [
        link
        for pair in links
        for link in pair
        if link and "://" not in link and not (ROOT / link).exists()
    ]
    assert not missing


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_the_blocks_run_one_after_the_other(tmp_path: Path) -> None:
    clone, bin = tmp_path / "clone", Path(sys.executable).parent
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    (clone / ".venv").symlink_to(bin.parent)
    # the tests do not run themselves, and .venv is there
    make = 'make() { if [ "$1" = test ]; then set -- -n "$@"; fi; command make -o setup "$@"; }'
    kinds, said = list[str](), ""
    for kind, block in BLOCK.findall(README):
        kinds.append(kind)
        if kind == "text":  # what the block before it prints
            printed = said.splitlines()[-len(block.splitlines()) :]
            assert [words(line) for line in printed] == [words(line) for line in block.splitlines()]
            continue
        command = (
            ["bash", "-ec", f"{make}\n{block}"]
            if kind == "sh"
            else [str(bin / "python"), "-c", block]
        )
        done = subprocess.run(
            command,
            cwd=clone,
            env={**os.environ, "PYTHONPATH": str(clone / "src")},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        said = done.stdout
        assert done.returncode == 0, f"{block}\n{said[-2000:]}\n{done.stderr[-3000:]}"
    assert {"sh", "python", "text"} <= {*kinds}


def words(line: str) -> str:
    """A printed line without its numbers, which differ from machine to machine."""
    return re.sub(r"[\d,.]+", "N", line)
