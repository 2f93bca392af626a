"""Activation checkpointing, by whichever name the installed transformers has for it."""

from typing import Any


def enable(model: Any, options: dict[str, Any] | None = None) -> None:
    """Recompute activations in the backward pass."""
    # The older name is deprecated where there is the newer one, of 5.23.
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)(options)


def disable(model: Any) -> None:
    """Keep activations."""
    getattr(model, "activation_checkpointing_disable", model.gradient_checkpointing_disable)()
