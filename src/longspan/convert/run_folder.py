"""Make published Transformer-XL checkpoints models of longspan: `convert`."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from longspan import tasks
from longspan.convert.transformer_xl import TransformerXL, read_transformer_xl
from longspan.convert.weights import load_containers, load_tensors
from longspan.errors import UserError, suggestion
from longspan.machine.bars import hidden_bars
from longspan.models import LongspanConfig, LongspanForCausalLM
from longspan.recipes import TRAINING_DEFAULTS
from longspan.report import count
from longspan.results.base import Result
from longspan.results.outputs import json_object, write_text
from longspan.tasks.base.task import Recipe
from longspan.tasks.language_modelling.options import LanguageModellingData, TrainingOptions

#: File names of vocabularies, in order of preference; the first two are pickles.
FILES = ("vocab.pkl", "vocab.bin", "vocab.txt")

_ENDS = ("<eos>", "<S>")
_UNKNOWNS = ("<unk>", "<UNK>")


@dataclass(frozen=True)
class Vocabulary:
    """The words that a model knows.

    Attributes:
        words: The words; their position is their id.
        lowercase: Whether text is lower-cased first.
        source: The file they come from.
    """

    words: list[str]
    lowercase: bool
    source: Path

    @property
    def end(self) -> str | None:
        """The word at the end of lines and documents, or None."""
        return next((word for word in _ENDS if word in self.words), None)

    @property
    def unknown(self) -> str | None:
        """The word for unknown words, or None."""
        return next((word for word in _UNKNOWNS if word in self.words), None)


def load_vocabulary(folder: Path, settings: dict[str, Any]) -> Vocabulary:
    """Read the vocabulary in `folder`.

    Args:
        folder: The folder with one of `FILES`. A pickle was written by `save_pretrained` of `TransfoXLTokenizer`, or by
            `torch.save` of the attributes of the authors' `Vocab`; in vocab.txt, the first word of each line counts.
        settings: The contents of tokenizer_config.json, if any: its `lower_case` overrides that of the vocabulary.

    Raises:
        UserError: there is no vocabulary, it is damaged or asks for code to be run, or it splits text differently.
    """
    path = next((folder / name for name in FILES if (folder / name).is_file()), None)
    if path is None:
        raise UserError(
            f"expected a vocabulary, {', '.join(FILES[:-1])} or {FILES[-1]}, in {str(folder)!r}, got none; copy it "
            "there, or write vocab.txt with one token per line in the order of ids."
        )
    own: dict[str, Any] = {}
    if path.suffix == ".txt":
        words = _lines(path)
    else:
        words, own = _pickled(path)
    return Vocabulary(words, bool(settings.get("lower_case", own.get("lower_case", False))), path)


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise UserError(
            f"expected UTF-8 text in {str(path)!r}, got another encoding; write one token per line in UTF-8."
        ) from None
    for number, line in enumerate(lines, 1):
        if not line.split():
            raise UserError(
                f"expected a token in each line of {str(path)!r}, got none in line {number}; remove or fill it."
            )
    # The authors' code skips repeated words.
    return list(dict.fromkeys(line.split()[0] for line in lines))


def _pickled(path: Path) -> tuple[list[str], dict[str, Any]]:
    found = load_containers(path)
    if not isinstance(found, dict):
        raise UserError(f"expected a vocabulary with idx2sym and sym2idx in {str(path)!r}, got none; use another file.")
    words, numbers = found.get("idx2sym"), found.get("sym2idx")
    if not words and isinstance(numbers, dict) and all(isinstance(number, int) for number in numbers.values()):
        words = sorted(numbers, key=numbers.__getitem__)
        if [numbers[word] for word in words] != list(range(len(words))):
            raise UserError(f"expected the ids 0, 1, 2, ... in sym2idx of {str(path)!r}, got gaps; use another file.")
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise UserError(
            f"expected a list of words as idx2sym, or sym2idx, in {str(path)!r}, got neither; use another file."
        )
    if len(set(words)) < len(words):
        raise UserError(f"expected each word once in {str(path)!r}, got one with two ids; use another file.")
    if found.get("delimiter") not in (None, " "):
        raise UserError(
            f"expected a vocabulary that splits text at white space, got the delimiter {found['delimiter']!r} in "
            f"{str(path)!r}, which is not supported; use another checkpoint."
        )
    return words, found


def build_tokenizer(vocabulary: Vocabulary) -> PreTrainedTokenizerFast:
    """Return a tokenizer that splits text as the authors' code does.

    White space separates words; a line break becomes the end token, if the vocabulary has one, and decoding turns it
    back into a line break. Transformers' `TransfoXLTokenizer` also splits off punctuation according to the rules of
    Moses: that must be done beforehand.
    """
    end, unknown = vocabulary.end, vocabulary.unknown
    numbers = {word: number for number, word in enumerate(vocabulary.words)}
    tokenizer = Tokenizer(models.WordLevel(numbers, **({"unk_token": unknown} if unknown else {})))
    normalizing: list[normalizers.Normalizer] = [normalizers.Lowercase()] if vocabulary.lowercase else []
    # No word contains a line break, so this only separates words by spaces.
    decoding = [decoders.WordPiece(prefix="\n", cleanup=False), decoders.Fuse()]
    if end:
        normalizing.append(normalizers.Replace(Regex("\r\n|\r|\n"), f" {end} "))
        decoding.append(decoders.Replace(Regex(f" ?{end} ?"), "\n"))
    tokenizer.normalizer = normalizers.Sequence(normalizing)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Sequence(decoding)
    special = {"bos_token": end, "eos_token": end, "pad_token": end, "unk_token": unknown}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
        **{role: word for role, word in special.items() if word},
    )


_WEIGHTS = ("model.safetensors", "pytorch_model.bin", "model.pt")
_SETTINGS = ("config.json", "args.json")
_MODEL_TYPE = "transfo-xl"
_STARTS = {"zeros": "as zeros that are seen", "empty": "empty"}


@dataclass(frozen=True)
class Conversion(Result):
    """Result of a conversion.

    Attributes:
        checkpoint: Path of the checkpoint.
        folder: The run folder.
        layout: "transformers" or "authors", depending on who wrote the checkpoint.
        parameters: Number of parameters, tied ones counted once.
        layers, dim, heads: The shape of the model.
        vocabulary: Number of words.
        end: The word at the beginning and end of documents.
        unknown: The word for unknown words, or None.
        lowercase: Whether text is lower-cased first.
        memory: Number of positions in the memory of attention.
        same_length: Whether every position sees equally many positions.
        clamp: The largest distance that is distinguished from smaller ones; 0 means no limit.
        start: The initial memory, "empty" or "zeros".
    """

    checkpoint: str
    folder: str
    layout: str
    parameters: int
    layers: int
    dim: int
    heads: int
    vocabulary: int
    end: str
    unknown: str | None
    lowercase: bool
    memory: int
    same_length: bool
    clamp: int
    start: str

    def summary(self) -> str:
        """Summary that `longspan convert` prints."""
        attention = [f"{count(self.memory)} positions of memory, which starts {_STARTS[self.start]}"]
        attention += ["every position sees as many"] if self.same_length else []
        attention += [f"distances up to {count(self.clamp)}"] if self.clamp else []
        return "\n".join(
            [
                f"{self.checkpoint}: a checkpoint of {self.layout}",
                f"{self.layers} layers of width {self.dim} with {self.heads} heads, "
                f"{count(self.parameters)} parameters, {count(self.vocabulary)} words",
                "; ".join(attention),
                f"written to {self.folder}",
            ]
        )


def convert(checkpoint: Path | str, out: Path | str, *, overwrite: bool = False, progress: bool = True) -> Conversion:
    """Convert a Transformer-XL checkpoint to a run folder, whose model predicts the same probabilities.

    The checkpoint was written by transformers' `TransfoXLLMHeadModel.save_pretrained`, or is a state dict of the
    authors' PyTorch code next to a config.json. Pickles are read without running anything that they ask for.

    Args:
        checkpoint: A folder with weights (model.safetensors, pytorch_model.bin or model.pt), settings (config.json or
            args.json) and a vocabulary (vocab.pkl, vocab.bin or vocab.txt), or the weights file in one.
        out: The run folder to write. It appears complete, or not at all.
        overwrite: Whether `out` may replace a run folder.
        progress: Whether to show a progress bar on standard error.

    Raises:
        UserError: something is missing, damaged, of another model, of a variant that is not supported, or asks for code
            to be run; or `out` exists.
    """
    checkpoint, out = Path(checkpoint), Path(out)
    weights_file = _find_weights(checkpoint)
    folder = weights_file.parent
    _check_out(out, overwrite)
    with tqdm(total=4, desc="Reading settings and vocabulary", disable=not progress, leave=False) as bar:
        settings = _settings(folder)
        vocabulary = load_vocabulary(folder, _optional(folder / "tokenizer_config.json"))
        _advance(bar, "Reading weights")
        found = read_transformer_xl(load_tensors(weights_file), settings, weights_file)
        if len(vocabulary.words) != found.config["vocab_size"]:
            raise UserError(
                f"expected as many words as word vectors, got {len(vocabulary.words)} words in "
                f"{str(vocabulary.source)!r} and {found.config['vocab_size']} vectors in {str(weights_file)!r}; use "
                "the files of one model."
            )
        _advance(bar, "Building the model")
        tokenizer = build_tokenizer(vocabulary)
        model = _model(found, vocabulary)
        _advance(bar, "Writing")
        with _written_whole(out, overwrite) as fresh, hidden_bars():
            model.save_pretrained(fresh)
            tokenizer.save_pretrained(fresh)
            recipe = _recipe(out.name, found, vocabulary, settings)
            write_text(fresh / "recipe.toml", recipe.to_toml())
        _advance(bar, "Written")
    attention = found.config["mixer_options"]["relative"]
    return Conversion(
        checkpoint=str(checkpoint),
        folder=str(out),
        layout=found.layout,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        layers=found.config["depth"],
        dim=found.config["dim"],
        heads=found.config["heads"],
        vocabulary=len(vocabulary.words),
        end=_end(vocabulary),
        unknown=vocabulary.unknown,
        lowercase=vocabulary.lowercase,
        **{name: attention[name] for name in ("memory", "same_length", "clamp", "start")},
    )


def _advance(bar: Any, next_step: str) -> None:
    bar.update()
    bar.set_description(next_step)


def _find_weights(checkpoint: Path) -> Path:
    if checkpoint.is_file():
        return checkpoint
    if not checkpoint.is_dir():
        near = [path.name for path in checkpoint.parent.iterdir()] if checkpoint.parent.is_dir() else []
        raise UserError(f"there is no checkpoint {str(checkpoint)!r}; {suggestion(checkpoint.name, near)}")
    path = next((checkpoint / name for name in _WEIGHTS if (checkpoint / name).is_file()), None)
    if path is None:
        raise UserError(
            f"expected weights, {', '.join(_WEIGHTS[:-1])} or {_WEIGHTS[-1]}, in {str(checkpoint)!r}, got none; "
            "copy them there, or name their file itself."
        )
    return path


def _check_out(out: Path, overwrite: bool) -> None:
    if not out.exists() and not out.is_symlink():
        return
    if not overwrite:
        raise UserError(f"{str(out)!r} exists; choose another folder, or replace it with --overwrite.")
    # Only run folders are ever deleted: not the checkpoint, nor anything else at a mistyped path.
    settings = _optional(out / "config.json") if out.is_dir() and not out.is_symlink() else {}
    if settings.get("model_type") != LongspanConfig.model_type:
        raise UserError(f"{str(out)!r} is not a run folder, so it is not replaced; choose another folder.")


def _settings(folder: Path) -> dict[str, Any]:
    path = next((folder / name for name in _SETTINGS if (folder / name).is_file()), None)
    settings = {} if path is None else json_object(path)
    kind = settings.get("model_type", _MODEL_TYPE)
    if kind != _MODEL_TYPE:
        raise UserError(
            f"expected a Transformer-XL, {_MODEL_TYPE!r}, in {str(path)!r}, got a model of type {kind!r}; use another "
            "checkpoint."
        )
    return settings


def _optional(path: Path) -> dict[str, Any]:
    return json_object(path) if path.is_file() else {}


def _end(vocabulary: Vocabulary) -> str:
    """Return the word at the beginning and end of documents; by default the first word, which is the most frequent.

    In the authors' vocabularies of characters, which have no end token, that is the space.
    """
    return vocabulary.end or vocabulary.words[0]


def _model(found: TransformerXL, vocabulary: Vocabulary) -> LongspanForCausalLM:
    end = vocabulary.words.index(_end(vocabulary))
    # On the meta device, as the checkpoint provides the values.
    with torch.device("meta"):
        model = LongspanForCausalLM(LongspanForCausalLM.configured(**found.config, bos_token_id=end, eos_token_id=end))
    model.load_state_dict(found.weights, assign=True)
    model.tie_weights()
    return model.eval()


def _recipe(name: str, found: TransformerXL, vocabulary: Vocabulary, settings: dict[str, Any]) -> Recipe:
    """Return the recipe for using the model, and for training another one of its shape."""
    data = LanguageModellingData(tokens="whitespace", vocab_size=len(vocabulary.words), lowercase=vocabulary.lowercase)
    model = {key: value for key, value in found.config.items() if key not in ("vocab_size", "pad_token_id")}
    length = settings.get("tgt_len")
    segment_length = length if isinstance(length, int) and length > 0 else 128
    return Recipe(
        name=name,
        task=tasks.load("language_modelling"),
        data=data,
        model=model,
        # Each row has its own memory, which is large.
        training=TRAINING_DEFAULTS | {"per_device_eval_batch_size": 8},
        options=TrainingOptions(segment_length=segment_length),
        description="A converted Transformer-XL.",
    )


@contextmanager
def _written_whole(out: Path, overwrite: bool) -> Iterator[Path]:
    """Provide a new folder that becomes `out`, replacing what is there, once everything is written."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as beside:
        fresh = Path(beside, "fresh")
        fresh.mkdir()
        yield fresh
        # Something may have come there meanwhile.
        _check_out(out, overwrite)
        if out.exists():
            out.rename(Path(beside, "old"))
        fresh.rename(out)
