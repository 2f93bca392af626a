"""Features from counts: words, clicks and ages."""

from transformers import PreTrainedModel

from longspan.data.text.processor import tokenizer_of
from longspan.data.text.tokenization import ordinary_tokens
from longspan.models.wide.ranker import FEATURES
from longspan.tasks.base import task
from longspan.tasks.base.task import Prepared, Recipe
from longspan.tasks.recommendation.baselines._ranking import Ranking, Scorer
from longspan.tasks.recommendation.counting import count_clicks, features
from longspan.tasks.recommendation.items import Items, Names, PreparedItems, title_tokenizer
from longspan.tasks.recommendation.options import RecommendationData
from longspan.tasks.recommendation.recorded import Recorded
from longspan.tasks.recommendation.samples import Impressions, labelled


class Counts(Ranking, task.Counts):
    """Similarity of a title to those clicked before, clicks of its words and of the item, and its age."""

    def scorer(self, recorded: Recorded, training: Impressions, data: RecommendationData) -> Scorer:
        known = recorded.known()
        names = Names([], [], [], [], False, 0, known["item"][:])
        tokenizer = title_tokenizer(recorded, data)
        items = Items.encoded(recorded.catalogue, tokenizer, names, data)
        ranker = count_clicks(ordinary_tokens(tokenizer), items, training)
        weights = ranker.weights.double().numpy()
        chosen = dict(zip(FEATURES, weights.round(4).tolist(), strict=True))
        numbers = sum(tensor.numel() for tensor in ranker.buffers())
        return Scorer(lambda shown: features(ranker, items, shown) @ weights, numbers, chosen)

    def count(self, recipe: Recipe, prepared: Prepared) -> task.Counted:
        assert isinstance(prepared, PreparedItems)
        tokens = ordinary_tokens(tokenizer_of(prepared.processor))
        ranker = count_clicks(tokens, prepared.items, Impressions(labelled(prepared.splits["train"])))

        def enter(model: PreTrainedModel) -> None:
            assert model.wide is not None
            own = dict(model.wide.named_buffers())
            for name, tensor in ranker.named_buffers():
                if name != "scales":
                    # A model may have room for more tokens.
                    own[name][: len(tensor)] = tensor

        return task.Counted({"time_origin": ranker.origin, "time_unit": ranker.unit}, enter)
