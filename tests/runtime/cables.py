"""Machines that are network namespaces, each with a cable to home that can be pulled. Needs root
and iproute2 on Linux.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from equipoise.runtime.cluster.host import SiteJob
from tests.runtime.machines import Processes

NET = f"198.18.{os.getpid() % 256}"  # of the addresses that are for tests of networks (RFC 2544)
CLONE_NEWNET = 0x40000000


def ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True, capture_output=True, text=True)


class Cables:
    """A switch at home, and namespaces that are plugged into it, by number."""

    address = f"{NET}.254"  # of home

    def __init__(self, count: int) -> None:
        self._name = f"eqp{os.getpid()}"
        self._names = [f"{self._name}-{number}" for number in range(count)]
        try:
            ip(f"link add {self._name} type bridge")
            ip(f"addr add {self.address}/24 dev {self._name}")
            ip(f"link set {self._name} up")
            for number, name in enumerate(self._names):
                ip(f"netns add {name}")
                ip(f"link add {name} type veth peer name eth0 netns {name}")
                ip(f"-n {name} addr add {NET}.{number + 1}/24 dev eth0")
                ip(f"-n {name} link set eth0 up")
                ip(f"link set {name} up")
                self.plug(number)
        except BaseException:
            self.close()
            raise

    def pull(self, number: int) -> None:
        """What is sent from now on vanishes, in both directions, and nobody is told."""
        ip(f"link set {self._names[number]} nomaster")

    def plug(self, number: int) -> None:
        ip(f"link set {self._names[number]} master {self._name}")

    @contextmanager
    def inside(self, number: int) -> Iterator[None]:
        """Let this thread, and so the processes that it begins, be in the namespace."""
        with (
            open("/proc/thread-self/ns/net") as here,
            open(f"/run/netns/{self._names[number]}") as there,
        ):
            enter(there.fileno())
            try:
                yield
            finally:
                enter(here.fileno())

    def close(self) -> None:
        for name in self._names:
            if Path(f"/run/netns/{name}").exists():
                ip(f"netns del {name}")
            # the kernel takes it with the namespace, soon
            if Path(f"/sys/class/net/{name}").exists():
                subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)
        if Path(f"/sys/class/net/{self._name}").exists():
            ip(f"link del {self._name}")


def enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


class Cabled(Processes):
    """Sites in namespaces: "site 0" at the first cable, and so on."""

    def __init__(self, cables: Cables) -> None:
        super().__init__()
        self.address, self._cables = cables.address, cables

    def start(self, job: SiteJob) -> None:
        with self._cables.inside(int(job.name.split()[1])):
            super().start(job)
