from typing import Any, Protocol

import numpy as np


class Selector(Protocol):
    def insert(self, places: Any, priority: Any = None) -> None: ...
    def remove(self, places: Any) -> None: ...
    def sample(self, n: int, rng: Any) -> Any: ...
    def update(self, places: Any, priority: Any) -> None: ...
    def __len__(self) -> int: ...
    def state(self) -> Any: ...
    def load(self, state: Any) -> None: ...


class Uniform:
    alpha = 1.0

    def __init__(self, places, alpha=1.0):
        self.p = np.zeros(places)
        self.alpha = alpha
        self.top = 1.0

    def insert(self, places, priority=None):
        self.p[places] = self.top

    def remove(self, places):
        self.p[places] = 0

    def sample(self, n, rng):
        q = self.p / self.p.sum()
        i = rng.choice(len(q), n, p=q)
        return i, q[i]

    def update(self, places, priority):
        pass

    def __len__(self):
        return int((self.p > 0).sum())

    def state(self):
        return {"p": self.p.copy(), "top": self.top}

    def load(self, s):
        self.p[:] = s["p"]
        self.top = s["top"]


class Fifo(Uniform):
    pass


class Prioritized(Uniform):
    def update(self, places, priority):
        if not (np.isfinite(priority) & (priority >= 0)).all():
            raise ValueError("priority bad")
        self.p[places] = np.maximum(priority, 1e-9) ** self.alpha
        self.top = max(self.top, self.p.max())


def importance_weights(p, n, beta):
    w = (n * p) ** -beta
    return w / w.max()
