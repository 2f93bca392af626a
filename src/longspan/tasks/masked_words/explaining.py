"""Which tokens speak for what a model fills a mask with: `filled_mask`."""

import numpy as np
import torch

from longspan.data.processor import Places
from longspan.data.sources.formats.rows import Row
from longspan.data.text.masks import characters_of
from longspan.data.text.processor import tokenizer_of
from longspan.data.text.tokenizer_training import MASK
from longspan.errors import UserError
from longspan.explanations.question import Question
from longspan.models.limits import too_long
from longspan.tasks.base import Run
from longspan.tasks.explaining import Case, likeliest, numbered, token_asked
from longspan.tasks.masked_words.filling import ids_with_masks


def filled_mask(run: Run, row: Row, of: str, at: float | None) -> Case:
    """Return what there is to explain about the mask with the number `at`, by default the first.

    Args:
        run: The run.
        row: A text with "<mask>" in it.
        of: The token that fills it; by default the likeliest.
        at: The number of the mask, from 1.

    Raises:
        UserError: See `Task.case`.
    """
    model, tokenizer, text = run.model, tokenizer_of(run.processor), row.values.get("text") or ""
    masks = text.count(MASK)
    if problem := row.problem or ("" if masks else f"no {MASK}"):
        raise UserError(
            f"{row.where}: expected a text with {MASK} in it to explain, got {problem}; choose another row."
        )
    ids = ids_with_masks(tokenizer, text)
    if problem := too_long(model, len(ids)):
        raise UserError(f"{row.where}: {problem}.")
    number = numbered(1 if at is None else at, masks, "a mask")
    place = int(np.flatnonzero(ids == tokenizer.mask_token_id)[number])
    batch = {"input_ids": torch.from_numpy(ids).unsqueeze(0).to(model.device)}
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    settings = {"logits_to_keep": torch.tensor([place], device=model.device)}
    with torch.no_grad():
        logits = model(**batch, **settings).logits.float().cpu()
    scores = logits[0, 0]
    asked = token_asked(tokenizer, of, scores).at(0)
    question = Question(model, batch, asked.value, asked.share, masked=False, settings=settings, at=place)
    places = Places("characters", characters_of(tokenizer, text), text)
    where = f"{row.where}, mask {number + 1}"
    said = {"probabilities": likeliest(tokenizer, scores)}
    return Case(where, asked, question, places, said, outputs=logits)
