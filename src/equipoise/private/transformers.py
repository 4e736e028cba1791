"""Private names of transformers."""

from __future__ import annotations

from torch import nn


def layers(module: nn.Module) -> list[nn.Module]:
    """The layers of a model: modules of the classes that transformers keeps whole on one device.

    ``_no_split_modules`` is what ``device_map`` goes by. Tried: 5.24. If it is gone: take
    the modules of the longest ``ModuleList``. [] for a model that names none.
    """
    names: frozenset[str] = frozenset(getattr(module, "_no_split_modules", None) or ())
    # torch's sharding puts a class of its own before a module's
    return [
        one
        for one in module.modules()
        if names.intersection(base.__name__ for base in type(one).__mro__)
    ]


def has_class(auto: type, config: type) -> bool:
    """Has an Auto class of transformers a class for configurations of this class?

    ``_model_mapping`` is what ``from_config`` looks it up in. Tried: 5.24. If it is gone: call
    ``from_config`` on the meta device, and take its ValueError as a no.
    """
    mapping: dict[type, object] = getattr(auto, "_model_mapping", {})
    return config in mapping
