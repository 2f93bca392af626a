"""Pre-trained word vectors in GloVe's text format: a word and its numbers per line."""

from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from longspan.errors import UserError


def load_word_vectors(embeddings: nn.Module, tokenizer: PreTrainedTokenizerBase, path: Path) -> int:
    """Copy the vectors of `path` into `embeddings` for the tokens that are words in it; return how many were found.

    The file is read line by line, so its size does not matter. A first line of two numbers (word2vec's header) is
    skipped. A token matches as written, or otherwise in lower case.

    Raises:
        UserError: for adaptive embeddings, a missing file, a line that is not a word and numbers, a width other than
            the embeddings', or if no token is found.
    """
    if not isinstance(embeddings, nn.Embedding):
        raise UserError("expected plain embeddings for word vectors, got adaptive ones; leave out model.cutoffs.")
    width = embeddings.embedding_dim
    wanted: dict[str, list[int]] = {}
    for token, number in tokenizer.get_vocab().items():
        word = tokenizer.convert_tokens_to_string([token]).strip()
        for form in {word, word.lower()}:
            wanted.setdefault(form, []).append(number)
    exact: set[int] = set()
    found: set[int] = set()
    try:
        with path.open(encoding="utf-8") as lines, torch.no_grad():
            for number, line in enumerate(lines, 1):
                word, *values = line.rstrip().split(" ")
                if number == 1 and len(values) == 1:
                    continue
                if len(values) != width:
                    raise UserError(
                        f"expected vectors of {width} numbers (model.embedding_dim) in {path}, got {len(values)} in "
                        f"line {number}; set model.embedding_dim={len(values)} or use another file."
                    )
                for index in wanted.get(word, ()):
                    if index in exact:
                        continue
                    embeddings.weight[index] = torch.tensor([float(value) for value in values])
                    found.add(index)
                    if tokenizer.convert_tokens_to_string([tokenizer.convert_ids_to_tokens(index)]).strip() == word:
                        exact.add(index)
    except FileNotFoundError:
        raise UserError(f"there is no file of word vectors {path}; check training.word_vectors.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"expected UTF-8 text in {path}, got other bytes ({error.reason}); convert the file.") from None
    except ValueError as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"expected a word and numbers in line {number} of {path}, got {line[:40]!r}; correct it."
        ) from error
    if not found:
        raise UserError(f"no token of the vocabulary is a word in {path}; use word tokens (data.tokens=words).")
    return len(found)
