"""Vocabularies of Transformer-XL, as its authors and as transformers kept them, turned into tokenizers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from longspan.convert.containers import load_containers
from longspan.errors import UserError

#: Where a vocabulary is looked for, in this order; the first two are pickles.
FILES = ("vocab.pkl", "vocab.bin", "vocab.txt")

_ENDS = ("<eos>", "<S>")
_UNKNOWNS = ("<unk>", "<UNK>")


@dataclass(frozen=True)
class Vocabulary:
    """The words that a model knows.

    Attributes:
        words: The words; the position is the id.
        lowercase: Whether text is lower-cased first.
        source: The file they are from.
    """

    words: list[str]
    lowercase: bool
    source: Path

    @property
    def end(self) -> str | None:
        """What stands at the end of a line and of a document, if there is such a word."""
        return next((word for word in _ENDS if word in self.words), None)

    @property
    def unknown(self) -> str | None:
        """What stands for every other word, if there is such a word."""
        return next((word for word in _UNKNOWNS if word in self.words), None)


def load_vocabulary(folder: Path, settings: dict[str, Any]) -> Vocabulary:
    """Read the vocabulary in `folder`.

    Args:
        folder: Where one of `FILES` is. A pickle is what `save_pretrained` of `TransfoXLTokenizer` or `torch.save` of
            the attributes of the authors' `Vocab` wrote; vocab.txt has a line per word, whose first word counts.
        settings: What tokenizer_config.json says, if there is one: `lower_case` counts before the vocabulary's own.

    Raises:
        UserError: there is none, it is damaged or asks for code to be run, or it splits text in a way of its own.
    """
    path = next((folder / name for name in FILES if (folder / name).is_file()), None)
    if path is None:
        raise UserError(
            f"expected a vocabulary, {', '.join(FILES[:-1])} or {FILES[-1]}, in {str(folder)!r} but there is none: put "
            "it there; vocab.txt holds one token per line in the order of ids."
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
        raise UserError(f"{str(path)!r} is not UTF-8 text: expected one token per line.") from None
    for number, line in enumerate(lines, 1):
        if not line.split():
            raise UserError(f"{str(path)!r} has no token in line {number}: expected one in each line, in order of ids.")
    # The authors' code passes over words that it has already.
    return list(dict.fromkeys(line.split()[0] for line in lines))


def _pickled(path: Path) -> tuple[list[str], dict[str, Any]]:
    found = load_containers(path)
    if not isinstance(found, dict):
        raise UserError(f"{str(path)!r} holds no vocabulary: expected a dictionary with idx2sym and sym2idx.")
    words, numbers = found.get("idx2sym"), found.get("sym2idx")
    if not words and isinstance(numbers, dict) and all(isinstance(number, int) for number in numbers.values()):
        words = sorted(numbers, key=numbers.__getitem__)
        if [numbers[word] for word in words] != list(range(len(words))):
            raise UserError(f"the ids of sym2idx in {str(path)!r} have gaps: expected 0, 1, 2 and so on.")
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise UserError(f"{str(path)!r} holds no vocabulary: expected a list of words as idx2sym, or sym2idx.")
    if len(set(words)) < len(words):
        raise UserError(f"{str(path)!r} has the same word under two ids: expected each word once.")
    if found.get("delimiter") not in (None, " "):
        raise UserError(
            f"the vocabulary {str(path)!r} splits text at {found['delimiter']!r}, but only white space is supported."
        )
    return words, found


def build_tokenizer(vocabulary: Vocabulary) -> PreTrainedTokenizerFast:
    """Return a tokenizer that splits text as the authors' code does.

    Words are what white space parts; a line break is the end token, where the vocabulary has one. Text from the
    tokenizer has line breaks there again. Transformers' `TransfoXLTokenizer` also splits off punctuation, by the rules
    of Moses: that is to be done to the text before.
    """
    end, unknown = vocabulary.end, vocabulary.unknown
    numbers = {word: number for number, word in enumerate(vocabulary.words)}
    tokenizer = Tokenizer(models.WordLevel(numbers, **({"unk_token": unknown} if unknown else {})))
    normalizing: list[normalizers.Normalizer] = [normalizers.Lowercase()] if vocabulary.lowercase else []
    # No word holds a line break, so this parts words by a space and adds nothing else.
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
