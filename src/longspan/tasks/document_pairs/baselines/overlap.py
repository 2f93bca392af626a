"""What both documents of a pair share: `Overlap`."""

import torch

from longspan.models.wide.linear import LinearPart
from longspan.models.wide.pairs import BUCKETS, PairPart
from longspan.tasks.base.linear import ClassCounts
from longspan.tasks.base.task import Prepared


class Overlap(ClassCounts):
    """Shared tokens of both documents, their rarity and both lengths, with logistic regression.

    With `model.wide`, models contain it (`longspan.models.wide.pairs.PairPart`).
    """

    def learn(self, part: LinearPart, prepared: Prepared) -> None:
        assert isinstance(part, PairPart)
        training, frequency = prepared.splits["train"], torch.zeros_like(part.idf)
        for row in training.select_columns(["input_ids", "second_ids"]).with_format("torch"):
            for ids in row.values():
                frequency[ids.unique() % BUCKETS] += 1
        idf = ((2 + 2 * len(training)) / (1 + frequency)).log().where(frequency > 0, 0)
        # Documents share no word for having one each that no training document has.
        unknown = prepared.processor.tokenizer.unk_token_id
        if unknown is not None:
            idf[unknown % BUCKETS] = 0
        part.idf.copy_(idf)
