"""Converting vocabularies of Transformer-XL, from its authors or from transformers, to tokenizers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from longspan.convert.containers import load_containers
from longspan.errors import UserError

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
