"""Make ``.venv`` with everything that ``make demo`` and ``make test`` need. Standard library only.

    python3 tools/bootstrap.py [--torch-index URL]

It asks for nothing but a Python 3.11 to 3.13 that has the module ``venv``: not for ``ensurepip``
(Debian keeps it in a package of its own), not for pip, not for a compiler. A set-up that was
interrupted is begun anew; one that is up to date is left alone. Torch comes without CUDA unless
``--torch-index`` names another index of PyTorch's own.
"""

from __future__ import annotations

import argparse
import configparser
import hashlib
import html
import importlib.util
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCK = ROOT / "requirements.lock"
STATE = VENV / "equipoise-setup"  # "building", "stale" or the fingerprint of what is installed
LOG = VENV / "setup.log"

OLDEST, NEWEST = (3, 11), (3, 13)
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
FIRST_IMPORTS = (
    "import equipoise.api, equipoise.cli, "
    "tensorboard.summary.writer.event_file_writer, torch._dynamo, pytest"
)


class SetupError(Exception):
    """Said to the person without a traceback."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Make .venv with everything that `make demo` and `make test` need."
    )
    parser.add_argument(
        "--torch-index",
        default="",
        metavar="URL",
        help="e.g. https://download.pytorch.org/whl/cu130",
    )
    args = parser.parse_args(argv)
    try:
        check_python(sys.version_info[:3])
        setup(args.torch_index)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    return 0


def check_python(version: tuple[int, ...]) -> None:
    if not OLDEST <= version[:2] <= NEWEST:
        have, oldest, newest = (".".join(map(str, v)) for v in (version, OLDEST, NEWEST))
        raise SetupError(
            f"Equipoise runs on Python {oldest} to {newest}; {sys.executable} is {have}. "
            f"Name another with `make setup PYTHON=/path/to/python{newest}`."
        )


def setup(torch_index: str) -> None:
    began = time.monotonic()
    wanted, state = fingerprint(torch_index), read_state()
    if state == wanted:
        return
    python = venv_python()
    reuse = state != "building" and is_ours(python)
    if not reuse:
        print(
            f"setup: making .venv with Python {sys.version.split()[0]} ({sys.executable})",
            flush=True,
        )
        make_venv()
    STATE.write_text("building")
    try:
        site = Path(
            sysconfig.get_path("purelib", "venv", {"base": str(VENV), "platbase": str(VENV)})
        )
        if not (site / "pip").is_dir():
            install_pip(python, site)
        install_torch(python, torch_index)
        print(f"setup: installing what {LOCK.name} names", flush=True)
        pip(python, "install", "--no-deps", "-r", str(LOCK))
        pip(python, "install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    except SetupError:
        if reuse:  # pip replaces nothing before it has everything, so what was there still serves
            STATE.write_text("stale")
        raise
    # Compiles them now and not in each process of the first run. Whether they import is for the
    # first command to say.
    run([str(python), "-c", FIRST_IMPORTS])
    STATE.write_text(wanted)
    print(f"setup: .venv is ready ({time.monotonic() - began:.0f} s)", flush=True)


# ------------------------------------------------------------------------------------ what is there


def fingerprint(torch_index: str) -> str:
    """Of all that decides what ``.venv`` holds;
    of pyproject.toml only what it says about packages.
    """
    import tomllib  # from 3.11 on, and so only once check_python has passed

    tables = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = json.dumps([tables["project"], tables["build-system"]], sort_keys=True)
    files = [file.read_text(encoding="utf-8") for file in (LOCK, Path(__file__))]
    interpreter = f"{sys.implementation.cache_tag} {sysconfig.get_platform()} {VENV}"
    return hashlib.sha256(
        "\0".join([project, *files, interpreter, torch_index]).encode()
    ).hexdigest()


def pinned(name: str) -> str:
    """``name==version`` as the lock has it."""
    found = re.search(rf"^{name}==[\w.]+", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise SetupError(f"{LOCK} does not name {name}")
    return found[0]


def read_state() -> str:
    try:
        state = STATE.read_text()
    except OSError:
        return ""
    # the interpreter that it was made from may be gone
    return state if venv_python().exists() else "building"


def venv_python() -> Path:
    return VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def is_ours(python: Path) -> bool:
    """Whether this interpreter starts and is of the version that runs us."""
    try:
        return run(
            [str(python), "-c", "import sys; print(sys.version_info[:2])"]
        ).stdout.strip() == str(sys.version_info[:2])
    except OSError:
        return False


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Without the person's PYTHONPATH, PYTHONHOME and the like: pip takes what lies there for
    installed.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


# ------------------------------------------------------------------------------------ the venv, pip


def make_venv() -> None:
    try:
        import venv
    except ImportError:
        raise SetupError(
            f"{sys.executable} has no module `venv`; on Debian: apt-get install python3-venv"
        ) from None
    venv.EnvBuilder(clear=True, symlinks=os.name != "nt", with_pip=False).create(VENV)


def install_pip(python: Path, site: Path) -> None:
    """From the first source there is: a wheel nearby, the pip of another Python, the package index.

    The wheel is pure Python and runs once unpacked; ensurepip takes ten times as long for the same.
    Then it installs the version that the lock names, which installs the rest three times as fast as
    what a Python of 2023 brings.
    """
    with tempfile.TemporaryDirectory() as folder:
        wheel = (
            max(nearby_pips(), key=wheel_version, default=None)
            or pip_by_pip(Path(folder))
            or download_pip(Path(folder))
        )
        zipfile.ZipFile(wheel).extractall(site)
        same = wheel.name.startswith(pinned("pip").replace("==", "-") + "-")
        pip(
            python,
            "install",
            "--no-deps",
            "--force-reinstall",
            str(wheel) if same else pinned("pip"),
        )


def nearby_pips() -> Iterator[Path]:
    """In ensurepip, where Debian keeps what it takes out of ensurepip, and where pip itself would
    look.
    """
    ensurepip = importlib.util.find_spec("ensurepip")
    places = (
        [str(Path(ensurepip.origin).parent / "_bundled")] if ensurepip and ensurepip.origin else []
    )
    for place in [*places, "/usr/share/python-wheels", *pip_setting("find-links").split()]:
        yield from Path(place.removeprefix("file://")).glob("pip-*-py3-none-any.whl")


def wheel_version(wheel: Path) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", wheel.name.split("-")[1])]


def pip_by_pip(folder: Path) -> Path | None:
    fetching = [
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(folder),
        pinned("pip"),
    ]
    for other in dict.fromkeys([sys.executable, shutil.which("python3"), shutil.which("python")]):
        if other and run([other, *fetching]).returncode == 0:
            return next(folder.glob("pip-*.whl"), None)
    return None


def download_pip(folder: Path) -> Path:
    index = (pip_setting("index-url") or "https://pypi.org/simple").rstrip("/")
    name = f"{pinned('pip').replace('==', '-')}-py3-none-any.whl"
    print(f"setup: fetching {name} from {index}", flush=True)
    found = re.search(
        rf'href="([^"#]*{re.escape(name)})(?:#sha256=(\w+))?"', fetch(f"{index}/pip/").decode()
    )
    if found is None:
        raise SetupError(
            f"{index} has no {name}, and no other pip is at hand; on Debian: apt-get install "
            "python3-pip"
        )
    wheel = folder / name
    wheel.write_bytes(fetch(urllib.parse.urljoin(f"{index}/pip/", html.unescape(found[1]))))
    if found[2] and hashlib.sha256(wheel.read_bytes()).hexdigest() != found[2]:
        raise SetupError(f"{name} arrived damaged: its sha256 is not what {index} says")
    return wheel


def fetch(url: str) -> bytes:
    context = ssl.create_default_context(cafile=pip_setting("cert") or None)
    try:
        with urllib.request.urlopen(url, timeout=30, context=context) as answer:
            return bytes(answer.read())
    except OSError as error:  # urllib's own errors and time-outs are of this kind
        raise SetupError(
            f"cannot reach {url}: {getattr(error, 'reason', error)}. This Python brings no pip, so "
            "the set-up needs the "
            "network, a pip on this machine (on Debian: apt-get install python3-pip), or a mirror "
            "in PIP_INDEX_URL."
        ) from None


def pip_setting(name: str) -> str:
    """What pip itself would read, where there is no pip yet to ask: its variable, then its files,
    the last one first.
    """
    if value := os.environ.get("PIP_" + name.upper().replace("-", "_")):
        return value
    files: list[str | Path] = [
        "/etc/pip.conf",
        Path.home() / ".pip/pip.conf",
        Path.home() / ".config/pip/pip.conf",
    ]
    config = configparser.RawConfigParser()
    try:
        config.read([*files, os.environ.get("PIP_CONFIG_FILE", "")], encoding="utf-8")
    except configparser.Error as error:
        raise SetupError(f"pip's configuration cannot be read: {error}") from None
    return config.get("global", name, fallback="")


# ----------------------------------------------------------------------------------------- packages


def install_torch(python: Path, torch_index: str) -> None:
    """Before the rest and by itself: what PyPI has for Linux is the CUDA build, gigabytes with its
    libraries.
    """
    torch = pinned("torch")
    if torch_index:
        print(f"setup: installing {torch} from {torch_index}", flush=True)
        pip(python, "install", "--upgrade", "--index-url", torch_index, torch)
        return
    # a wheel in find-links, or installed already
    local = ["install", "--no-deps", "--no-index", torch]
    if run([str(python), "-m", "pip", *local, "--no-compile"]).returncode == 0:
        return
    if sys.platform == "linux":
        print(f"setup: installing {torch} for CPUs from {CPU_INDEX} (about 200 MB)", flush=True)
        pip(python, "install", "--no-deps", "--index-url", CPU_INDEX, f"{torch}+cpu")


def pip(python: Path, *args: str) -> None:
    """Quiet, with everything in ``.venv/setup.log``; ``--no-compile``, since nine modules of ten
    are never imported.
    """
    where = ["--no-compile"] if args[0] == "install" else []
    options = ["--disable-pip-version-check", "--no-input", "--retries", "2", "--timeout", "60"]
    began = time.monotonic()
    done = run([str(python), "-m", "pip", *args, *where, *options])
    with LOG.open("a", encoding="utf-8") as log:
        log.write(
            f"$ pip {' '.join(args)}\n{done.stdout}{done.stderr}({time.monotonic() - began:.1f} s)\n\n"  # noqa: E501
        )
    if done.returncode != 0:
        errors = [
            line for line in done.stderr.splitlines() if line.startswith("ERROR")
        ] or done.stderr.splitlines()[-5:]
        network = re.search(
            r"NewConnectionError|ConnectTimeout|NameResolution|ProxyError|SSLError",
            done.stdout + done.stderr,
        )
        hint = (
            "The index cannot be reached: check the network, or name a mirror in PIP_INDEX_URL, "
            "or a folder with wheels in "
        )
        hint = f"{hint}PIP_FIND_LINKS. " if network else ""
        raise SetupError(
            f"pip {' '.join(args)} failed:\n"
            + "\n".join(errors)
            + f"\n{hint}The whole story: {LOG}"
        )


if __name__ == "__main__":
    sys.exit(main())
