"""megatron-core, where it is installed. Nothing else imports it."""

from __future__ import annotations

import warnings
from functools import lru_cache
from importlib import import_module
from typing import Any

_NEEDED = (
    "models.gpt.gpt_layer_specs",
    "process_groups_config",
    "transformer",
    "transformer.transformer_layer",
)


def megatron(name: str) -> Any:
    """Return a module of megatron.core by its name there."""
    with warnings.catch_warnings():
        # It misses Apex and Transformer Engine, which the layers used here don't need.
        warnings.simplefilter("ignore")
        return import_module(f"megatron.core.{name}")


@lru_cache(maxsize=1)
def import_obstacle() -> str | None:
    """Return why megatron-core can't be imported, None where it can. Takes seconds, once."""
    try:
        for name in _NEEDED:
            megatron(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "megatron":
            return "megatron-core is not installed"
        return f"megatron-core can't be imported without {error.name}"
    except ImportError as error:
        return f"megatron-core can't be imported: {error}"
    return None
