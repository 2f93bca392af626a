"""Tokens that speak for the next one: `next_token`."""

import numpy as np
import torch

from longspan.data.processor import Places
from longspan.data.sources.formats.rows import Row
from longspan.data.text.offsets import tokens_with_offsets
from longspan.data.text.processor import tokenizer_of
from longspan.errors import UserError
from longspan.explanations.question import Question
from longspan.models.limits import too_long
from longspan.tasks.base.case import Case, likeliest, numbered, token_asked
from longspan.tasks.base.task import Run
from longspan.tasks.language_modelling.contexts import reading
from longspan.tasks.language_modelling.likelihood import attention_length
from longspan.tasks.language_modelling.options import EvaluationOptions


def next_token(run: Run, row: Row, of: str, at: float | None) -> Case:
    """Case of the token at `at`, by default the one after the end of the text.

    The model reads as many tokens before it as it scores documents with, without carried states.

    Args:
        run: The run.
        row: The text.
        of: The token; by default the one there, or the likeliest one after the end.
        at: Its number, from 1.

    Raises:
        UserError: See `Task.case`.
    """
    model, tokenizer, text = run.model, tokenizer_of(run.processor), row.values.get("text") or ""
    if problem := row.problem or ("" if text.strip() else "empty document"):
        raise UserError(f"{row.where}: expected a text to explain, got {problem}; choose another row.")
    ((ids, offsets),) = tokens_with_offsets(tokenizer, [text])
    # The next one after the last has a number, too.
    place = len(ids) if at is None else numbered(at, len(ids) + 1, "a token")
    first = max(0, place + 1 - _most(run, place + 1))
    before = np.concatenate([[tokenizer.eos_token_id], ids[:place]]).astype(np.int64)[first:]
    if problem := too_long(model, len(before)):
        raise UserError(f"{row.where}: {problem}.")
    batch = {"input_ids": torch.from_numpy(before).unsqueeze(0).to(model.device)}
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    settings = {"use_cache": False, "logits_to_keep": 1}
    with torch.no_grad():
        logits = model(**batch, **settings).logits.float().cpu()
    scores = logits[0, -1]
    known = None if of or place == len(ids) else int(ids[place])
    asked = token_asked(tokenizer, of, scores, known).at(-1)
    question = Question(model, batch, asked.value, asked.share, masked=False, settings=settings)
    spans = np.concatenate([np.full((1, 2), -1), offsets[:place]])[first:]
    said = {"probabilities": likeliest(tokenizer, scores)}
    where = f"{row.where}, token {place + 1:,}"
    return Case(where, asked, question, Places("characters", spans, text), said, first, outputs=logits)


def _most(run: Run, length: int) -> int:
    """Number of `length` tokens that are read at most."""
    how = reading(run, EvaluationOptions())
    if how.window:
        return how.window
    memory = attention_length(run.model)
    return length if memory is None else how.segment_length + memory
