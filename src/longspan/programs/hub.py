"""`longspan export --format hub`: a model for tools that know transformers alone, and never import longspan.

`config.json` names the classes of `modeling_longspan.py` (`auto_map`), a few lines that import them from longspan.
transformers runs these lines for `trust_remote_code=True`. A run folder has no such file.
"""

import copy
import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import transformers
from huggingface_hub import ModelCard, ModelCardData
from torch import Tensor
from transformers import PreTrainedModel

from longspan.data.processor import json_object
from longspan.data.text.processor import TextProcessor
from longspan.errors import UserError
from longspan.machine.bars import hidden_bars
from longspan.models import (
    LongspanForCausalLM,
    LongspanForMaskedLM,
    LongspanForQuestionAnswering,
    LongspanForSeq2SeqLM,
    LongspanForSequenceClassification,
    LongspanForTokenClassification,
    LongspanModel,
    remote_code,
)
from longspan.models.limits import limits
from longspan.models.publishing import LIBRARY, NAME, is_ours
from longspan.models.remote_code import FILE
from longspan.programs.exported import Export
from longspan.results.outputs import write_json, write_text
from longspan.tasks.base.task import Run

#: The class of transformers that loads each model with its head.
AUTO_MODELS: dict[type[PreTrainedModel], str] = {
    LongspanForCausalLM: "AutoModelForCausalLM",
    LongspanForMaskedLM: "AutoModelForMaskedLM",
    LongspanForQuestionAnswering: "AutoModelForQuestionAnswering",
    LongspanForSeq2SeqLM: "AutoModelForSeq2SeqLM",
    LongspanForSequenceClassification: "AutoModelForSequenceClassification",
    LongspanForTokenClassification: "AutoModelForTokenClassification",
}
_TOKENS = 64
_PICTURE = re.compile(r"!\[[^\]]*\]\([^)]*\)\n*")


@dataclass(frozen=True)
class HubExport(Export):
    """Result of `longspan.export` for the format "hub".

    Attributes:
        auto_model: Name of the class of transformers that loads the model with its head.
    """

    auto_model: str = ""

    def summary(self) -> str:
        """Summary that `longspan export --format hub` prints."""
        return (
            f"written to {self.folder}, where README.md says how to load it:\n\n"
            f"  {self.auto_model}.from_pretrained({self.folder!r}, trust_remote_code=True)\n\n"
            f"Loading needs the package longspan (pip install longspan), which {FILE} imports."
        )


def check(run: Run) -> None:
    """Raise UserError if transformers cannot load a run's model by an Auto class, or only with code of others."""
    config, kind = run.model.config, type(run.model)
    bodies = [module.config for module in run.model.modules() if isinstance(module, LongspanModel)]
    mixers = [name for body in bodies for name in [*(body.mixers or []), *(body.cross_mixers or [])]]
    parts = [("mixer", name) for name in dict.fromkeys(mixers)]
    parts += [(f"kind of {each.part}", each.kind()) for each in (config.embeddings, config.head) if each is not None]
    if not kind.__module__.startswith(f"{LIBRARY}."):
        parts.append(("model", f"{kind.__module__}.{kind.__qualname__}"))
    for what, name in parts:
        if "." in name:
            raise UserError(
                f"expected a model made of longspan's own parts to export for the Hub, got the {what} {name!r}, whose "
                "code an export does not contain; share the run folder together with that package."
            )
    if kind not in AUTO_MODELS:
        raise UserError(
            f"expected a model that an Auto class of transformers loads to export for the Hub, got a {kind.__name__} "
            f"of the task {run.task.name!r}; share the run folder, which longspan reads."
        )
    if not isinstance(run.processor, TextProcessor):
        raise UserError(
            f"expected a run that reads text with a tokenizer to export for the Hub, got one with a "
            f"{type(run.processor).__name__} of the task {run.task.name!r}; share the run folder, which longspan reads."
        )


def write(fresh: Path, run: Run, folder: Path, tolerance: float) -> HubExport:
    """Write the export of a run to `fresh`, which will become `folder`.

    Raises:
        UserError: Loaded again, it gives something else, by more than `tolerance` of the largest output.
    """
    auto_model = AUTO_MODELS[type(run.model)]
    model = copy.deepcopy(run.model).to("cpu").eval()
    longest = min((limit.tokens for limit in limits(model)), default=None)
    with hidden_bars():
        model.save_pretrained(fresh)
        config = json_object(fresh / "config.json")
        write_json(fresh / "config.json", {**config, "auto_map": _auto_map(auto_model, type(model))})
        remote_code.write(fresh)
        read = _save_tokenizer(fresh, run, longest)
        rows = _inputs(model)
        auto = getattr(transformers, auto_model)
        loaded = auto.from_pretrained(fresh, local_files_only=True, trust_remote_code=False)
    difference = max(_difference(model.float(), loaded.float(), row, tolerance) for row in rows)
    write_text(fresh / "README.md", card(run, auto_model, truncates=read is not None))
    return HubExport(
        task=run.task.name,
        format="hub",
        folder=str(folder),
        file="model.safetensors",
        bytes=(fresh / "model.safetensors").stat().st_size,
        longest=longest,
        data="random tokens",
        checked=[tuple(row["input_ids"].shape) for row in rows],
        difference=difference,
        auto_model=auto_model,
    )


def _auto_map(auto_model: str, kind: type[PreTrainedModel]) -> dict[str, str]:
    module = FILE.removesuffix(".py")
    names = {"AutoConfig": "LongspanConfig", "AutoModel": "LongspanModel", auto_model: kind.__name__}
    return {auto: f"{module}.{name}" for auto, name in names.items()}


def _save_tokenizer(folder: Path, run: Run, longest: int | None) -> int | None:
    """Save the tokenizer, which cuts texts where the run does, and return after how many tokens."""
    assert isinstance(run.processor, TextProcessor)
    tokenizer, data = copy.deepcopy(run.processor.tokenizer), run.recipe.data
    # Where a task reads long texts in windows, the model reads more.
    read = getattr(data, "max_length", None) if run.task.cuts_examples else None
    most = min((length for length in (read, longest) if length), default=None)
    if most is not None:
        tokenizer.model_max_length = most
    if getattr(data, "keep", None) == "last":
        # The attribute alone is not saved.
        tokenizer.truncation_side = tokenizer.init_kwargs["truncation_side"] = "left"
    # With another one of targets, if there is one.
    replace(run.processor, tokenizer=tokenizer).save_pretrained(folder)
    return most


def _inputs(model: PreTrainedModel) -> list[dict[str, Tensor]]:
    """Return batches of tokens: one, and several rows of many; as many of a decoder, if there is one."""
    generator = torch.Generator().manual_seed(0)
    readers = {"input_ids": model.base_model}
    if model.config.is_encoder_decoder:
        readers["decoder_input_ids"] = model.get_decoder()
    most = {name: min([_TOKENS, *(limit.tokens for limit in limits(reader))]) for name, reader in readers.items()}
    return [
        {
            name: torch.randint(reader.config.vocab_size, (rows, min(length, most[name])), generator=generator)
            for name, reader in readers.items()
        }
        for rows, length in ((1, 1), (2, _TOKENS))
    ]


@torch.no_grad()
def _difference(model: PreTrainedModel, loaded: PreTrainedModel, inputs: dict[str, Tensor], tolerance: float) -> float:
    """Return the largest difference between the outputs of two models, or raise UserError if it is large."""
    expected, found = (
        [value for value in each.eval()(**inputs).to_tuple() if isinstance(value, Tensor) and value.is_floating_point()]
        for each in (model, loaded)
    )
    largest = 0.0
    for one, other in zip(expected, found, strict=True):
        difference = float((one - other).abs().max())
        allowed = tolerance * max(1.0, float(one.abs().max()))
        # NaN is not within it either.
        if not difference <= allowed:
            raise UserError(
                f"expected the exported model to give what the run's gives to within {allowed:.1e}, got a difference "
                f"of {difference:.1e}; nothing is written: check the run with `longspan evaluate`."
            )
        largest = max(largest, difference)
    return largest


def card(run: Run, auto_model: str, *, truncates: bool) -> str:
    """Return README.md: what the run's own card says of the model, and how to load it without importing longspan."""
    path = run.folder / "README.md"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if not is_ours(text):
        mixers = list(dict.fromkeys(run.model.config.mixers))
        head = ModelCardData(tags=[LIBRARY, *mixers]).to_yaml()
        text = _SHORT.format(
            head=head,
            task=run.task.name.replace("_", " "),
            mixers=", ".join(mixers),
            parameters=f"{run.model.num_parameters():,}",
        )
    about, _, rest = text.partition("\n## Use\n")
    # Pictures stay in the run folder, as do the recipe, which names the data, and what is said of the training.
    about = _PICTURE.sub("", about).rstrip()
    limitations = rest.partition("\n## Limitations\n")[2].strip()
    code = _code(rest.partition("\n## ")[0], auto_model)
    parts = [about, _USE.format(code=code), *_tools(auto_model, truncates)]
    if limitations:
        parts.append(f"## Limitations\n\n{limitations}")
    found = ModelCard("\n\n".join(parts) + "\n")
    # The Hub offers the lines of transformers for it.
    found.data["library_name"] = "transformers"
    found.data["tags"] = list(dict.fromkeys([*(found.data.get("tags") or []), "custom_code"]))
    return str(found)


def _code(use: str, auto_model: str) -> str:
    """Return the Python of a run's card as it is without longspan, or the lines that load a model."""
    written = re.search(r"```python\n(.*?)```", use, re.DOTALL)
    lines = [line for line in (written[1] if written else "").splitlines() if "longspan" not in line]
    code = "\n".join(lines).strip()
    if f"{auto_model}.from_pretrained(name" not in code:
        code = _LOADING.format(name=NAME, auto_model=auto_model)
    return re.sub(r"\.from_pretrained\(name\b", ".from_pretrained(name, trust_remote_code=True", code)


def _tools(auto_model: str, truncates: bool) -> list[str]:
    """Calls of other tools, in Markdown."""
    lines = []
    if auto_model == "AutoModelForCausalLM":
        lines += [
            "`lm_eval --model hf --model_args pretrained=NAME,trust_remote_code=True --tasks TASK`",
            "`trl.SFTTrainer(NAME, args=SFTConfig(trust_remote_code=True), train_dataset=...)`",
        ]
    if auto_model == "AutoModelForSequenceClassification":
        cut = ", truncation=True" if truncates else ""
        lines.append(
            f'`pipeline("text-classification", model=NAME, trust_remote_code=True)(texts{cut})` of transformers'
        )
    lines.append("`sentence_transformers.SentenceTransformer(NAME, trust_remote_code=True)`, without the head")
    listed = "\n".join(f"- {line}" for line in lines)
    return [f"Other tools take this folder, or the repository it was uploaded to, as NAME:\n\n{listed}"]


_USE = """\
## Use

Install the package with `pip install longspan`. Code need not import it: with `trust_remote_code=True`, transformers
runs `modeling_longspan.py`, which does.

```python
{code}
```"""
_LOADING = """\
from transformers import {auto_model}, AutoTokenizer

{name}
model = {auto_model}.from_pretrained(name)
tokenizer = AutoTokenizer.from_pretrained(name)"""
_SHORT = """\
---
{head}
---

# A model of the task {task}

Made with longspan: {mixers}, {parameters} parameters.

## Use
"""
