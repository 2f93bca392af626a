"""Checks of a recipe's `[training]`: packages that it needs, and keys that would be ignored."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from longspan.errors import UserError, suggestion
from longspan.machine.imports import require
from longspan.training.arguments import Arguments

#: By reporter of `TrainingArguments.report_to`, the package it is imported as, and what pip calls it.
REPORTERS: Mapping[str, tuple[str, str]] = {
    "azure_ml": ("azureml", "azureml-sdk"),
    "clearml": ("clearml", "clearml"),
    "codecarbon": ("codecarbon", "codecarbon"),
    "comet_ml": ("comet_ml", "comet-ml"),
    "dagshub": ("dagshub", "dagshub"),
    "dvclive": ("dvclive", "dvclive"),
    "flyte": ("flytekit", "flytekit"),
    "kubeflow": ("kubeflow", "kubeflow"),
    "mlflow": ("mlflow", "mlflow"),
    "neptune": ("neptune", "neptune"),
    "swanlab": ("swanlab", "swanlab"),
    "tensorboard": ("tensorboard", "tensorboard"),
    "trackio": ("trackio", "trackio"),
    "wandb": ("wandb", "wandb"),
}

_GALORE = ("galore_torch", "galore-torch")
_APOLLO = ("apollo_torch", "apollo-torch")
_BITSANDBYTES = ("bitsandbytes", "bitsandbytes")
_SCHEDULE_FREE = ("schedulefree", "schedulefree")
_LOMO = ("lomo_optim", "lomo-optim")

#: By optimizer of `TrainingArguments.optim`, the same; those of PyTorch itself are not here.
OPTIMIZERS: Mapping[str, tuple[str, str]] = {
    "adamw_torch_xla": ("torch_xla", "torch-xla"),
    "adamw_torch_npu_fused": ("torch_npu", "torch-npu"),
    "adamw_anyprecision": ("torchdistx", "git+https://github.com/pytorch/torchdistx"),
    "adamw_torch_4bit": ("torchao", "torchao"),
    "adamw_torch_8bit": ("torchao", "torchao"),
    "ademamix": _BITSANDBYTES,
    "adamw_bnb_8bit": _BITSANDBYTES,
    "adamw_8bit": _BITSANDBYTES,
    "ademamix_8bit": _BITSANDBYTES,
    "lion_8bit": _BITSANDBYTES,
    "lion_32bit": _BITSANDBYTES,
    "paged_adamw_32bit": _BITSANDBYTES,
    "paged_adamw_8bit": _BITSANDBYTES,
    "paged_ademamix_32bit": _BITSANDBYTES,
    "paged_ademamix_8bit": _BITSANDBYTES,
    "paged_lion_32bit": _BITSANDBYTES,
    "paged_lion_8bit": _BITSANDBYTES,
    "rmsprop_bnb": _BITSANDBYTES,
    "rmsprop_bnb_8bit": _BITSANDBYTES,
    "rmsprop_bnb_32bit": _BITSANDBYTES,
    "galore_adamw": _GALORE,
    "galore_adamw_8bit": _GALORE,
    "galore_adafactor": _GALORE,
    "galore_adamw_layerwise": _GALORE,
    "galore_adamw_8bit_layerwise": _GALORE,
    "galore_adafactor_layerwise": _GALORE,
    "lomo": _LOMO,
    "adalomo": _LOMO,
    "grokadamw": ("grokadamw", "grokadamw"),
    "schedule_free_radam": _SCHEDULE_FREE,
    "schedule_free_adamw": _SCHEDULE_FREE,
    "schedule_free_sgd": _SCHEDULE_FREE,
    "apollo_adamw": _APOLLO,
    "apollo_adamw_layerwise": _APOLLO,
    "stable_adamw": ("optimi", "torch-optimi"),
}

#: Keys that need a package as soon as they are set.
SWITCHES: Mapping[str, tuple[str, str]] = {
    "deepspeed": ("deepspeed", "deepspeed"),
    "use_liger_kernel": ("liger_kernel", "liger-kernel"),
}


#: Keys for the loaders of transformers and accelerate, and for processes that these start.
_LOADERS = (
    *("accelerator_config", "auto_find_batch_size", "dataloader_in_order", "dataloader_multiprocessing_context"),
    *("dataloader_persistent_workers", "dataloader_prefetch_factor", "length_column_name", "parallelism_config"),
    "train_sampling_strategy",
)
#: By setting, keys that nothing reads where it is set, or that do not work with it.
UNUSED: Mapping[str, Sequence[str]] = {
    "data.streaming": (*_LOADERS, "dataloader_drop_last", "dataloader_num_workers", "ignore_data_skip"),
    "training.context_parallel": (*_LOADERS, "average_tokens_across_devices"),
    "training.fsdp": (
        *("auto_find_batch_size", "ddp_broadcast_buffers", "ddp_bucket_cap_mb", "ddp_find_unused_parameters"),
        *("ddp_static_graph", "deepspeed", "fp16", "parallelism_config"),
        *("torch_compile", "torch_compile_backend", "torch_compile_mode"),
    ),
}


def check_used(training: Mapping[str, Any], settings: Sequence[str]) -> None:
    """Check a recipe's keys of `TrainingArguments` that differ from their defaults.

    Args:
        training: The keys with their values.
        settings: Those keys of `UNUSED` that the recipe sets.

    Raises:
        UserError: A key would be ignored with one of the settings.
    """
    usual = {field.name: field.default for field in dataclasses.fields(Arguments)}
    for setting in settings:
        for key in UNUSED[setting]:
            if key in training and training[key] != usual[key]:
                raise UserError(f"expected {setting} or training.{key}, got both; leave one of them out.")


def check_packages(training: Mapping[str, Any]) -> None:
    """Check a recipe's keys of `TrainingArguments`, before these are made and before data are read.

    Raises:
        UserError: A package is not installed, or there is no such reporter.
    """
    optimizer = training.get("optim", "")
    if optimizer in OPTIMIZERS:
        module, install = OPTIMIZERS[optimizer]
        require(module, f"training.optim={optimizer}", install=install, instead="leave it out")
    for key, (module, install) in SWITCHES.items():
        if training.get(key):
            require(module, f"training.{key}", install=install, instead="leave it out")
    reporters = training.get("report_to") or []
    _check_reporters([reporters] if isinstance(reporters, str) else reporters)


def _check_reporters(names: Sequence[str]) -> None:
    for name in names:
        if name in ("all", "none"):
            continue
        if name not in INTEGRATION_TO_CALLBACK:
            hint = suggestion(name, [*INTEGRATION_TO_CALLBACK, "all", "none"])
            raise UserError(f"training.report_to knows no reporter {name!r}; {hint}")
        try:
            INTEGRATION_TO_CALLBACK[name]()
        except (RuntimeError, ImportError, ValueError) as error:
            if name in REPORTERS:
                module, install = REPORTERS[name]
                require(module, f"training.report_to={name}", install=install, instead="leave it out")
            told = str(error).partition(". ")[0].rstrip(".")
            raise UserError(
                f"expected training.report_to={name} to work, got an error ({told}); fix it, or leave it out."
            ) from error
