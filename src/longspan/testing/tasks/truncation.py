"""What predictions say about examples of which not all tokens are read."""

import dataclasses

from longspan.errors import UserError
from longspan.testing.tasks.subject import Subject, need, same
from longspan.verbs.predict import predict


def says_what_it_leaves_out(subject: Subject) -> None:
    """A prediction from a part of an example says how many tokens were read; others say nothing of it."""
    run = subject.run()
    whole = list(predict(run, subject.rows()))
    for found in whole:
        untold = found.tokens_read is None and found.tokens_total is None
        need(untold, f"{found.where} is read in full, but its prediction reports truncation")
    if not run.task.cuts_examples or not hasattr(run.recipe.data, "max_length"):
        return
    try:
        data = dataclasses.replace(run.recipe.data, max_length=4)
        short = dataclasses.replace(run, recipe=dataclasses.replace(run.recipe, data=data))
        parts = list(predict(short, subject.rows()))
    except UserError:
        # It refuses to cut documents.
        return
    for complete, part in zip(whole, parts, strict=True):
        if part.error is not None or (part.tokens_read is not None and (part.tokens_total or 0) > part.tokens_read):
            continue
        try:
            same(
                dataclasses.replace(part, tokens_read=None, tokens_total=None).to_dict(), complete.to_dict(), part.where
            )
        except AssertionError:
            need(False, f"{part.where} was cut to 4 tokens, and its prediction does not say so")
