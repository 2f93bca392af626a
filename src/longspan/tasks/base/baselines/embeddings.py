"""Sentence embeddings of pretrained models, for linear models over them: `EmbeddingBaseline`.

The models are those of model2vec and of sentence-transformers, in folders on this machine. Nothing is downloaded, and
no code that comes with a model is run.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import huggingface_hub
import numpy as np
from datasets.utils import tqdm
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedTokenizerBase

from longspan.data.sources.files.opening import expand, missing
from longspan.errors import UserError, first_line
from longspan.machine import imports
from longspan.machine.printing import note
from longspan.tasks.base.baselines.bags import BagBaseline, Matrices
from longspan.tasks.base.task import ModelBaseline, S

#: Values of scikit-learn's C that validation chooses from, for features with a standard deviation of one.
STRENGTHS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
#: Documents embedded at a time.
BATCH = 64

Encode = Callable[[Sequence[str]], np.ndarray]
"""Maps documents to their embeddings, `(n, d)`."""


class EmbeddingBaseline(BagBaseline[S], ModelBaseline[S]):
    """A linear model over frozen sentence embeddings of documents, with settings chosen by the validation split."""

    example: ClassVar[str] = "minishlab/potion-base-8M"

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.pretrained = find(model)
        self.source = self.pretrained.source

    def features(self, texts: Mapping[str, Sequence[str]]) -> Matrices:
        """Return the embeddings of each split, each dimension standardised as in the training split.

        Raises:
            UserError: The model cannot be read, or its embeddings are not finite.
        """
        from sklearn.preprocessing import StandardScaler

        found = embeddings(self.pretrained, texts)
        scaler = StandardScaler().fit(found["train"])
        return {name: scaler.transform(split) for name, split in found.items()}


# Models


@dataclass(frozen=True)
class Pretrained:
    """A model of sentence embeddings on this machine.

    Attributes:
        name: Its folder or its name on the Hugging Face Hub, as given.
        source: The same, but with its folder in full.
        folder: Where its files are.
        static: Whether its embeddings are means of token embeddings, so that model2vec reads it.
        normalize: Whether its modules normalise a mean to length one.
    """

    name: str
    source: str
    folder: Path
    static: bool
    normalize: bool


def find(name: str) -> Pretrained:
    """Return the model in a folder, or the downloaded model of this name on the Hugging Face Hub.

    Raises:
        UserError: Unknown model, or the package that reads it is not installed.
    """
    folder = _folder(name)
    kinds = _modules(name, folder)
    static = kinds <= {"StaticEmbedding", "Normalize"} if kinds else _has_token_embeddings(folder)
    if not kinds and not static:
        raise _expected(
            name, "whose files are of neither (no modules.json, and no tensor 'embeddings' in model.safetensors)"
        )
    package = "model2vec" if static else "sentence_transformers"
    imports.require(package, f"the model {name!r} of the baseline 'embeddings'", instead="leave it out")
    source = str(folder.absolute()) if expand(name).exists() else name
    return Pretrained(name, source, folder, static, "Normalize" in kinds)


def _folder(name: str) -> Path:
    """Return the folder that a name means, or that of the Hub's cache."""
    folder = expand(name)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise _expected(name, "which is a file")
    unknown = UserError(f"the baseline 'embeddings': {missing(folder)}")
    if name.startswith((".", "/", "~")):
        raise unknown
    try:
        return Path(huggingface_hub.snapshot_download(name, local_files_only=True))
    except HFValidationError:
        raise unknown from None
    except LocalEntryNotFoundError:
        raise UserError(
            f"the baseline 'embeddings' expected the folder of a model, or the name of one that was downloaded from "
            f"the Hugging Face Hub, got {name!r}, which is neither on this machine; check it, or download it with "
            f"`hf download {name}`."
        ) from None


def _modules(name: str, folder: Path) -> set[str]:
    """Return the classes of the modules of a model of sentence-transformers; none if the folder does not say."""
    path = folder / "modules.json"
    if not path.is_file():
        return set()
    try:
        return {str(module["type"]).rpartition(".")[2] for module in json.loads(path.read_text(encoding="utf-8"))}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _expected(name, f"whose modules.json cannot be read ({first_line(error)})") from error


def _has_token_embeddings(folder: Path) -> bool:
    """Say whether a folder without modules.json has the weights of model2vec."""
    path = folder / "model.safetensors"
    try:
        with safe_open(path, "np") as file:
            return "embeddings" in file.keys()  # noqa: SIM118
    except (OSError, SafetensorError):
        return False


def _expected(name: str, problem: str) -> UserError:
    return UserError(
        f"the baseline 'embeddings' expected a model of model2vec or sentence-transformers, got {name!r}, {problem}; "
        "restore its files, or name another."
    )


# Embeddings


def embeddings(model: Pretrained, texts: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray]:
    """Return the embeddings of documents by split, `(n, d)` float32, and say how many documents were cut.

    Raises:
        UserError: The model cannot be read, or embeddings are not finite.
    """
    try:
        encode = _static(model) if model.static else _contextual(model, texts)
    # Unexpected files raise anything in transformers, and plain `Exception` in tokenizers.
    except Exception as error:
        raise _expected(model.name, f"which could not be loaded ({first_line(error)})") from error
    found = {name: _encoded(encode, split, name) for name, split in texts.items()}
    if not all(np.isfinite(split).all() for split in found.values()):
        raise _expected(model.name, "whose embeddings of some documents are not finite numbers")
    return found


def _static(model: Pretrained) -> Encode:
    """Encoder that reads all tokens of documents."""
    from model2vec import StaticModel

    static = StaticModel.from_pretrained(model.folder)
    # That of its own settings, unless a module does it.
    normalize = True if model.normalize else None
    return lambda texts: static.encode(texts, max_length=None, normalize=normalize, use_multiprocessing=False)


def _contextual(model: Pretrained, texts: Mapping[str, Sequence[str]]) -> Encode:
    """Encoder that reads as many tokens as the model allows; prints how many documents have more."""
    from sentence_transformers import SentenceTransformer

    contextual = SentenceTransformer(str(model.folder), trust_remote_code=False, local_files_only=True)
    _note_truncation(model.name, contextual, texts)
    return lambda texts: contextual.encode(list(texts), show_progress_bar=False)


def _note_truncation(name: str, contextual: Any, texts: Mapping[str, Sequence[str]]) -> None:
    most = contextual.max_seq_length or math.inf
    tokenizer = getattr(contextual[0], "tokenizer", None)
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        return
    cut = total = 0
    for split in texts.values():
        total += len(split)
        for start in range(0, len(split), BATCH):
            batch = list(split[start : start + BATCH])
            ids = tokenizer(batch, truncation=False, padding=False, verbose=False)["input_ids"]
            cut += sum(len(row) > most for row in ids)
    if cut:
        kept = "end" if tokenizer.truncation_side == "left" else "beginning"
        note(
            f"{cut:,} of {total:,} documents have more than the {most:,} tokens that the embeddings {name!r} read, so "
            f"only the {kept} of each was read"
        )


def _encoded(encode: Encode, texts: Sequence[str], split: str) -> np.ndarray:
    starts = tqdm(range(0, len(texts), BATCH), desc=f"Embedding documents ({split})", leave=False)
    return np.concatenate([encode(texts[start : start + BATCH]) for start in starts]).astype(np.float32)
