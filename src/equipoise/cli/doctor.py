"""``equipoise doctor``: the machine and the packages, as a bug report needs them."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path

from equipoise.cli.app import Debug, app
from equipoise.console.help import Sections, plain_errors

LOCK = Path(__file__).parents[3] / "requirements.lock"  # of a clone
PIN = re.compile(r"([\w.-]+)==(\S+)(?: *; *(.+))?")  # a line of the lock: name, version, marker
NAMED = 5  # changes of `make setup` that are printed; the others are counted


@app.command(
    cls=Sections, epilog="Paste it into a bug report: it has no name of a user, host or path."
)
def doctor(debug: Debug = False) -> None:
    """Print the machine, its limits and the versions of packages, for a bug report."""
    with plain_errors("equipoise doctor", debug):
        for name, value in facts().items():
            print(f"{name:12} {value}")


def facts() -> dict[str, str]:
    """Facts for a bug report, by name. They name no person, host or path."""
    from equipoise.cores import usable
    from equipoise.publishing import unordered
    from equipoise.record.origin import versions

    instructions, gpu = of_torch()
    found = {name: version or "not installed" for name, version in versions().items()}
    found |= {
        "platform": f"{platform.system()} {platform.release()}, {platform.machine()}, "
        f"{' '.join(platform.libc_ver())}",
        "processor": f"{processor()}; torch uses {instructions}",
        "processes": f"no: {reason}; use --on serial"
        if (reason := unordered())
        else "yes: stores keep their order",
        "cores": f"{usable()} of {os.cpu_count()}",
        "load": " ".join(f"{load:.1f}" for load in os.getloadavg()),
        "limit": limit(),
        "memory": memory(),
        "shared": shared(),
        "descriptors": descriptors(),
        "gpu": gpu,
    }
    there, missing = extras()
    return found | {
        "extras": ", ".join(there) or "none",
        "without": ", ".join(missing) or "nothing",
        "make setup": setup(),
    }


def limit() -> str:
    """Processor time that the control groups of this process allow."""
    from equipoise.cores import cgroup_cores

    cores = cgroup_cores()
    return "no cgroup limits the processor" if cores is None else f"{cores:g} cores by its cgroup"


def memory() -> str:
    """Memory of the machine, or of its cgroup if that has less."""
    try:
        from equipoise.plans.memory_needed import machine
    except (ImportError, OSError):  # torch, which the sum of a run's memory needs
        return "unknown: torch cannot be imported"
    found = machine()
    return f"{size(found.free)} free of {size(found.total)}, {found.name}"


def setup(lock: Path = LOCK) -> str:
    """Packages that ``make setup`` would install in other versions than this Python has."""
    try:
        lines = lock.read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"not known: there is no {lock.name}, which a clone of the project has"
    pins = [found for line in lines if (found := PIN.fullmatch(line)) and applies(found[3])]
    changes = [
        f"{name} {have or 'missing'} -> {wanted}"
        for name, wanted, _ in (pin.groups() for pin in pins)
        if (have := installed(name)) is None or have.partition("+")[0] != wanted.partition("+")[0]
    ]
    if not changes:
        return f"changes nothing: {len(pins)} packages are as {lock.name} names them"
    more = f", and {len(changes) - NAMED} more" if len(changes) > NAMED else ""
    return f"changes {len(changes)} of {len(pins)} packages: {', '.join(changes[:NAMED])}{more}"


def applies(marker: str | None) -> bool:
    """Is a package of the lock one for this platform? False if that cannot be found out."""
    if marker is None:
        return True
    try:
        from packaging.markers import Marker
    except ImportError:  # it comes with the lock
        return False
    return Marker(marker).evaluate()


def of_torch() -> tuple[str, str]:
    """(the instructions that torch uses, the GPUs that it sees). If torch cannot be imported, the
    first one has the error.
    """
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: one of its libraries
        return f"nothing: it cannot be imported: {error}", "unknown"
    used = re.search(r"CPU capability usage: (\S+)", torch.__config__.show())
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return used[1] if used else "unknown instructions", ", ".join(gpus) or "none"


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def size(count: int | None) -> str:
    return "unknown" if count is None else f"{count / 2**30:.1f} GiB"


def shared() -> str:
    """Free space of the memory that processes share as files, which is small in Docker."""
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return "no /dev/shm"
    return (
        f"{size(room.f_bavail * room.f_frsize)} free of {size(room.f_blocks * room.f_frsize)} "
        "in /dev/shm"
    )


def descriptors() -> str:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"at most {soft:,} open files, {hard:,} if a process asks"


def extras() -> tuple[list[str], list[str]]:
    """The project's extras whose packages are all here, and the others."""
    there: dict[str, bool] = {}
    for line in metadata.requires("equipoise") or ():
        package, extra = re.match(r"[\w.-]+", line), re.search(r"extra == ['\"](\w+)['\"]", line)
        if (
            package
            and extra
            and extra[1] not in ("all", "dev")
            and not package[0].startswith("equipoise")
        ):
            there[extra[1]] = there.get(extra[1], True) and installed(package[0]) is not None
    return [name for name, whole in there.items() if whole], [
        name for name, whole in there.items() if not whole
    ]


def installed(package: str) -> str | None:
    """The version of a package of this Python; None if it is missing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
