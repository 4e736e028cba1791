"""Pictures of the live page of real runs: ``python tools/watch_page.py docs/pictures`` (needs
Playwright and a Chromium).

Trains CartPole a few times for the list, then once more, and takes pictures while that run goes on:
the ring, the comparison, the versions of a registry (whose artifacts are empty), and the page on a
telephone, each in the light and in the dark.
"""

from __future__ import annotations

import io
import itertools
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from equipoise.registry import Registry
from equipoise.watching.page import Page as Served
from equipoise.watching.page import folder
from equipoise.watching.server import serving
from equipoise.watching.versions import Versions
from tests.registry.made import artifact

BEFORE = (
    "--seeds 3 --steps 50k --evaluate-every 10k --out runs/ppo",
    "--algorithm impala --steps 60k --evaluate-every 10k --out runs/impala",
    "--algorithm apex_dqn --actors 2 --steps 12k --evaluate-every 4k --out runs/apex_dqn",
)
LIVE = (
    "--algorithm impala --actors 2 --max-lag 1 --steps 3M --evaluate-every 100k --quiet --out "
    "runs/live"
)
SETTLED_S = 40.0  # of the run, until the model has said what would help
LONGEST_MS = 240_000  # until the page has a curve; a busy machine takes minutes
COMPARED = "".join(f"&run=ppo%2Fseed_{n}" for n in range(3))
RUN, COMPARE, VERSIONS = "#/run/live", f"#/compare?run=impala{COMPARED}", "#/versions"
PICTURES = {  # name: address, width, height, pixels for each; each one light and dark
    "watch": (RUN, 1440, 960, 1),
    "watch-compare": (COMPARE, 1280, 860, 1),
    "watch-versions": (VERSIONS, 1280, 860, 1),
    "watch-narrow": (RUN, 390, 1200, 1),
}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def train(words: str, cwd: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "equipoise", "train", "CartPole-v1", *shlex.split(words)]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def registry(place: Path) -> Registry:
    """Seven versions, three of which were the champion."""
    made, found = Registry(place / "registry", create=True), list[str]()
    for i, (parent, mean) in enumerate(
        [(None, 121.0), (0, 230.5), (1, 311.2), (1, 287.9), (2, 402.3), (4, 455.0), (3, 361.0)]
    ):
        lineage = {
            "run": f"runs/impala-{i}",
            "step": 20_000 * (i + 1),
            "algorithm": "impala",
            "parent": None if parent is None else found[parent],
            "evaluation": {"mean": mean, "std": 12.5, "episodes": 20},
        }
        found.append(
            made.add(
                artifact(place / f"artifacts/{i}", str(i), lineage),
                "cartpole",
                reason=f"from run {i}",
            )
        )
    for version, reason in (
        (1, "holds for 200 steps"),
        (2, "better on the test set"),
        (4, "402 over 20 episodes"),
    ):
        made.alias("cartpole", "champion", found[version], reason=reason)
    made.alias("cartpole", "candidate", found[5], reason="to be tried")
    made.alias("cartpole", "shadow", found[6])
    return made


def smaller(png: bytes) -> bytes:
    """The same picture in 256 colours, a third of the size; rare hues keep their own."""
    whole = Image.open(io.BytesIO(png)).convert("RGB")
    few = whole.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    out = io.BytesIO()
    few.save(out, "PNG", optimize=True)
    return out.getvalue()


def ready(page: Page, address: str) -> None:
    page.goto(address)
    curve = {"r": ".learning .line", "c": ".big .line", "v": ".node"}[address.partition("#/")[2][0]]
    page.wait_for_selector(curve, state="attached")  # a page that lives draws it again and again
    page.wait_for_timeout(2500)


def main(out: Path) -> None:
    with tempfile.TemporaryDirectory() as home:
        place = Path(home)
        for words in BEFORE:
            train(words, place).wait()
        made, run = registry(place), train(LIVE, place)
        try:
            time.sleep(SETTLED_S)
            page = Served(folder(place / "runs"), Versions(made.path), closed=False)
            with serving(page) as port, sync_playwright() as play:
                browser = play.chromium.launch(
                    executable_path=shutil.which("chromium"), args=["--no-sandbox"]
                )
                for (name, (address, width, height, scale)), scheme in itertools.product(
                    PICTURES.items(), SCHEMES
                ):
                    context = browser.new_context(
                        viewport={"width": width, "height": height},
                        device_scale_factor=scale,
                        color_scheme=scheme,
                    )
                    context.set_default_timeout(LONGEST_MS)
                    window = context.new_page()
                    ready(window, f"http://127.0.0.1:{port}/{address}")
                    file = out / f"{name}-{scheme}.png"
                    file.write_bytes(smaller(window.screenshot()))
                    print(f"wrote {file}: {file.stat().st_size / 1000:,.0f} kB")
                    context.close()
                browser.close()
        finally:
            run.terminate()
            run.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
