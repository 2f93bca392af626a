"""Weighted n-grams: `Tfidf`."""

from collections.abc import Iterator

import torch

from longspan.tasks.bags import BagBaseline, Candidate, Documents, tfidf
from longspan.tasks.document_regression.scores import RegressionScores

#: What validation chooses from as the weight of the squared norm, for targets with a standard deviation of one.
PENALTIES = (3.0, 1.0, 0.3, 0.1)


class Tfidf(BagBaseline[RegressionScores]):
    """TF-IDF of words and pairs of words, in few documents also of characters, with ridge regression."""

    def candidates(self, documents: Documents, seed: int) -> Iterator[Candidate]:
        from sklearn.linear_model import Ridge

        mean, scale = float(documents.config.head.target_mean), float(documents.config.head.target_scale)
        wanted = (documents.targets["train"].double().numpy() - mean) / scale
        for features, found in tfidf(documents.texts):
            for penalty in PENALTIES:
                model = Ridge(alpha=penalty, solver="sparse_cg", random_state=seed).fit(found["train"], wanted)
                outputs = {
                    split: torch.from_numpy(model.predict(matrix) * scale + mean).unsqueeze(-1)
                    for split, matrix in found.items()
                    if split != "train"
                }
                yield Candidate({"features": features, "alpha": penalty}, outputs, found["train"].shape[1] + 1)
