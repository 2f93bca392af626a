"""Explanations of the labels of words: `word_case`."""

import numpy as np
import torch

from longspan.data.batches.streams import pad
from longspan.data.processor import Places
from longspan.data.sources.formats.rows import Row
from longspan.data.text.processor import tokenizer_of
from longspan.data.text.words import WordEncoder
from longspan.errors import UserError
from longspan.explanations.question import Question
from longspan.tasks.base.case import Case, class_asked, place_of
from longspan.tasks.base.task import Run
from longspan.tasks.token_classification.examples import PER_TOKEN, Reader
from longspan.tasks.token_classification.prediction import WordsPrediction


def word_case(run: Run, row: Row, of: str, at: float | None, prediction: WordsPrediction, reader: Reader) -> Case:
    """Case of the label of the word with the number `at`.

    What speaks for it are the words of the window in which it is labelled.

    Args:
        run: The run.
        row: The document.
        of: The label; by default the one that it gets.
        at: The number of the word, from 1; by default the first one with the rarest label.
        prediction: The labels of all words.
        reader: Converter of words to examples.

    Raises:
        UserError: See `Task.case`.
    """
    model, config = run.model, run.model.config
    words, labels, offsets = prediction.tokens, prediction.labels, prediction.offsets
    if words is None or labels is None or offsets is None:
        raise UserError(f"{row.where}: expected words to explain, got {prediction.error}; choose another row.")
    place = place_of(at, labels, "a word")
    encoder = WordEncoder.of(tokenizer_of(run.processor))
    given = {"tokens": words, "sentences": prediction.sentences, "feature": row.values.get("feature")}
    # Each word is labelled in one window, at the first of its tokens.
    examples = list(reader.windows(encoder, given))
    number = int(np.searchsorted(np.cumsum([sum(one["kept"]) for one in examples]), place, "right"))
    example, own = examples[number], reader.word_of_each(encoder, words)[number]
    at_token = int(np.flatnonzero(own == place)[0])
    streams = {**run.processor.streams, **PER_TOKEN}
    batch = {name: each.to(model.device) for name, each in pad([example], streams).items()}
    names = [config.id2label[number] for number in range(config.num_labels)]
    asked = class_asked(names, of or labels[place]).at(at_token)
    with torch.no_grad():
        logits = model(**batch).logits.float().cpu()
    text = row.values["tokens"] if isinstance(row.values["tokens"], str) else " ".join(words)
    spans = np.where(own[:, None] < 0, -1, np.array(offsets)[own.clip(0)])
    shares = logits[0, at_token].softmax(-1).tolist()
    said = {"label": labels[place], "probabilities": dict(zip(names, shares, strict=True))}
    question = Question(model, batch, asked.value, asked.share, masked=False, at=at_token)
    where = f"{row.where}, word {place + 1:,} ({words[place]})"
    return Case(where, asked, question, Places("characters", spans, text), said, outputs=logits)
