"""Parts of a source that speak for the text that a model writes for it: `written`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longspan.data.batches.streams import pad
from longspan.data.processor import Places
from longspan.errors import UserError
from longspan.explanations.question import Question
from longspan.models.limits import too_long
from longspan.tasks.base.case import Case, Target, likeliest, numbered, token_asked
from longspan.tasks.base.seq2seq.search import Search, search
from longspan.tasks.base.task import Run


@dataclass(frozen=True)
class SourceText:
    """A source as it is read.

    Attributes:
        ids: Its tokens (m,).
        places: Positions of the tokens, as people see them.
        removed: Number of further positions.
    """

    ids: list[int]
    places: Places
    removed: int = 0


def written(run: Run, where: str, source: SourceText, how: Search, name: str, of: str, at: float | None) -> Case:
    """Case of the text that a model writes for a source.

    Args:
        run: The run.
        where: The place of the example.
        source: The source.
        how: How the text is searched for.
        name: Its name, such as "translation".
        of: A token to explain in place of the one at `at`.
        at: The number of a token of the text, from 1, the end among them; None for the text as a whole, of which the
            log probability is explained.

    Raises:
        UserError: See `Task.case`.
    """
    model, reader = run.model, run.processor
    if problem := too_long(model, len(source.ids)):
        raise UserError(f"{where}: {problem}.")
    if of and at is None:
        raise UserError(f"expected the number of a token (at) with another one to explain there, got {of!r} alone.")
    with torch.inference_mode():
        ((best, *_),) = search(model, [source.ids], how, reader.streams).targets
    tokenizer = reader.target_tokenizer
    target = torch.tensor([[*best, tokenizer.eos_token_id]], device=model.device)
    read = pad([{"input_ids": source.ids}], reader.source_streams)
    batch = {key: each.to(model.device) for key, each in read.items()}
    batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(target)
    (text,) = reader.texts([best])
    said: dict[str, Any] = {name: text}
    if at is None:
        asked = _whole(target[0].cpu(), f"the {name}")
    else:
        place = numbered(at, target.shape[1], f"a token of the {name}, its end among them")
        with torch.no_grad():
            scores = model(**batch).logits[0, place].float().cpu()
        asked = token_asked(tokenizer, of, scores, int(target[0, place])).at(place)
        said["probabilities"] = likeliest(tokenizer, scores)
        where = f"{where}, token {place + 1:,} of the {name}"
    question = Question(model, batch, asked.value, asked.share)
    return Case(where, asked, question, source.places, said, source.removed)


def _whole(target: Tensor, name: str) -> Target:
    """Return the log probability of all tokens of a target (t,), and the geometric mean of their probabilities."""

    def nats(logits: Tensor) -> Tensor:
        shares = logits.log_softmax(-1)
        return shares.gather(-1, target.to(logits.device).expand(len(logits), -1).unsqueeze(-1)).sum((1, 2))

    return Target(name, "nats", nats, lambda logits: (nats(logits) / len(target)).exp())
