"""Training of models that recommend."""

import functools
from typing import Any

import numpy as np
from datasets import Dataset

from longspan.data.batches.by_length import LengthBatches, padding_fraction
from longspan.data.batches.drawn import EpochBatches
from longspan.tasks.recommendation.counting import aucs_of_parts, best_scales, combined, compared
from longspan.tasks.recommendation.items import Items
from longspan.tasks.recommendation.ranking import ItemVectors, impression_outputs, measured
from longspan.tasks.recommendation.samples import Collator, Impressions, Samples, labelled
from longspan.tasks.recommendation.scores import RecommendationScores
from longspan.training.arguments import data_seed
from longspan.training.base import LongspanTrainer
from longspan.training.lengths import Loader


class RecommendationTrainer(LongspanTrainer[RecommendationScores]):
    """A `Trainer` that reads clicks with sampled negatives, other ones in each epoch, in batches by length of history.

    Args:
        items: the catalogue.
        users: numbers of known users.
        negatives: number of items that were not clicked for each click.
        batch_clicks: maximum number of clicks and candidates in a batch, padding included; 0 is no limit.
        popularity: how often each item was clicked in training, (items,).
        kwargs: arguments of `Trainer`; data sets are impressions (`longspan.tasks.recommendation.recorded`).

    Raises:
        UserError: when no click can be told from anything.
    """

    def __init__(
        self,
        model: Any,
        *args: Any,
        items: Items,
        users: dict[str, int],
        negatives: int,
        batch_clicks: int,
        popularity: np.ndarray,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, *args, data_collator=Collator(items), **kwargs)
        self.items, self.users, self.batch_clicks, self.popularity = items, users, batch_clicks, popularity
        self.samples = Samples(
            Impressions(self.train_dataset, users),
            negatives=negatives,
            each=model.config.head.recommendation_loss != "binary",
            seed=data_seed(self.args),
        )

    def get_train_dataloader(self) -> Loader:
        return Loader(
            self.samples,
            batch_sampler=EpochBatches(self._training_batches(self.args.process_index)),
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.pins,
        )

    def padding_fraction(self) -> float:
        """Return the share of padding among the clicks and candidates of an epoch, from 0 to 1."""
        sizes = self.samples.sizes
        batches = (batch for rank in range(self.args.world_size) for batch in self._training_batches(rank))
        return padding_fraction((batch for batch in batches if batch), sizes)

    def batch_positions(self, epoch: int) -> list[int]:
        batches = self._training_batches(self.args.process_index)
        batches.set_epoch(epoch)
        return [max(1, sum(int(self.samples.sizes[row]) for row in batch)) for batch in batches]

    def score(self, dataset: Dataset) -> RecommendationScores:
        """Return the scores, and choose the scales of counts and network if this is the validation split.

        They are chosen before a checkpoint is saved, so each one has its own. Training does not depend on them.
        """
        impressions, wide = Impressions(labelled(dataset), self.users), self.model.wide
        if wide is None:
            return measured(impressions, self._outputs(impressions), self.popularity)
        parts = self._outputs(impressions, "parts")
        if dataset is self.eval_dataset:
            wide.scales.copy_(best_scales(parts, impressions))
        both = combined(wide, parts)
        self.remember_parts(dataset, functools.partial(compared, aucs_of_parts(parts, both, impressions)))
        return measured(impressions, both, self.popularity)

    def rehearse(self, dataset: Dataset) -> None:
        self._outputs(Impressions(dataset, self.users))

    def details(self) -> dict[str, Any]:
        return {"samples": len(self.samples), "clicks_left_out": self.samples.left_out, **super().details()}

    def _outputs(self, impressions: Impressions, name: str = "logits") -> np.ndarray:
        shown = self.reporting()
        with ItemVectors(self.model, self.items, progress=shown["progress"]) as vectors:
            return impression_outputs(
                self.model,
                impressions,
                vectors,
                name=name,
                batch_size=self.args.eval_batch_size,
                batch_clicks=self.batch_clicks,
                **shown,
            )

    def _training_batches(self, rank: int) -> LengthBatches:
        return LengthBatches(
            self.samples.sizes,
            self._train_batch_size,
            max_tokens=self.batch_clicks,
            shuffle=True,
            seed=data_seed(self.args),
            drop_last=self.args.dataloader_drop_last,
            rank=rank,
            world=self.args.world_size,
        )
