"""``equipoise doctor``: the machine and the packages, as a bug report needs them."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path

from equipoise.cli.app import Debug, app
from equipoise.console.help import Sections, plain_errors


@app.command(cls=Sections, epilog="Paste it into a report: it names no user, no host and no path.")
def doctor(debug: Debug = False) -> None:
    """Print the machine and the versions of packages, for a bug report."""
    with plain_errors("equipoise doctor", debug):
        for name, value in facts().items():
            print(f"{name:12} {value}")


def facts() -> dict[str, str]:
    """Facts for a bug report, by name. They name no person, host or path."""
    from equipoise.cores import usable
    from equipoise.plans.memory_needed import machine
    from equipoise.publishing import unordered
    from equipoise.record.origin import versions

    memory, (instructions, gpu) = machine(), of_torch()
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
        "memory": f"{size(memory.free)} free of {size(memory.total)}, {memory.name}",
        "shared": shared(),
        "descriptors": descriptors(),
        "gpu": gpu,
    }
    there, missing = extras()
    return found | {
        "extras": ", ".join(there) or "none",
        "without": ", ".join(missing) or "nothing",
    }


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
            there[extra[1]] = there.get(extra[1], True) and _is_there(package[0])
    return [name for name, whole in there.items() if whole], [
        name for name, whole in there.items() if not whole
    ]


def _is_there(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True
