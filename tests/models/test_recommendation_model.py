"""The model that recommends: padding, batches, vectors kept, saving, compiling, and what it refuses."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from recommending import FORMS, LABELS, NEWS, SIZES, STREAMING, USERS, batch, build, news, padded
from torch import Tensor, nn

from longspan import LongspanConfig, LongspanForRecommendation, UserError
from longspan.models import recommenders
from longspan.models.limits import limits
from longspan.models.recommenders.naml import Naml
from longspan.models.word_vectors import load_word_vectors

every = pytest.mark.parametrize("form", FORMS)


def close(found: Any, expected: Any) -> None:
    """Compare outputs; sums in another order, and sinusoids that are float32 inside."""
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(found.user_vectors, expected.user_vectors, rtol=1e-6, atol=1e-7)


@every
@torch.no_grad()
def test_padding_changes_nothing(form: str) -> None:
    model = build(form)
    expected = model(**batch(model))
    assert not expected.logits[USERS["candidate_mask"] == 0].any()
    for left, right in ((0, 2), (3, 1)):
        texts = padded(batch(model), ("input_ids", "attention_mask"), left, right, 3)
        texts = padded(texts, ("abstract_ids", "abstract_mask"), right, left, 3)
        # Padding of clicks may be any number, of news that are there or not.
        rows = padded(texts, ("history", "history_mask"), left, right, -1)
        close(model(**rows), expected)
    more = padded(batch(model), ("candidates", "candidate_mask"), 1, 0, 99)
    found = model(**more)
    torch.testing.assert_close(found.logits[:, 1:], expected.logits)
    assert not found.logits[:, 0].any()


@pytest.mark.slow
@every
@torch.no_grad()
def test_neither_other_users_nor_other_news_change_anything(form: str) -> None:
    model = build(form)
    together = model(**batch(model))
    for row in range(4):
        alone = model(**news(model) | {name: column[row : row + 1] for name, column in USERS.items()})
        torch.testing.assert_close(alone.logits[0], together.logits[row], rtol=1e-6, atol=1e-7)
    # The same news in another order, some twice.
    order = torch.tensor([6, 3, 0, 1, 2, 2, 5, 4, 1])
    moved = torch.tensor([2, 3, 4, 1, 7, 6, 0])
    columns = {name: moved[USERS[name]] for name in ("history", "candidates")}
    close(model(**batch(model) | news(model, order) | columns), together)


@every
@torch.no_grad()
def test_users_without_clicks_and_with_one(form: str) -> None:
    model = build(form)
    found = model(**batch(model))
    assert found.user_vectors.isfinite().all()
    assert not found.user_vectors.isnan().any()
    if found.history_weights is None:
        assert model.config.head.recommender == "lstur"
    else:
        weights = found.history_weights
        torch.testing.assert_close(weights.sum(1), torch.tensor([1.0, 1.0, 0.0, 1.0]).to(weights))
        assert not weights[USERS["history_mask"] == 0].any()
        assert weights[3, 2] == 1
    without = {name: column for name, column in batch(model).items() if not name.startswith("history")}
    torch.testing.assert_close(model(**without).user_vectors[2], found.user_vectors[2])


@every
@torch.no_grad()
def test_news_of_which_there_is_nothing_are_zero(form: str) -> None:
    model = build(form)
    vectors = model.encode_news(**news(model))
    assert not model.select(vectors, torch.zeros(1, 1).long(), user_ids=torch.ones(1).long()).any()
    assert not model(**batch(model)).logits[1, 2:].any()


@every
@torch.no_grad()
def test_vectors_that_were_kept_are_as_good_as_the_news(form: str) -> None:
    model = build(form)
    expected = model(**batch(model))
    vectors = model.encode_news(**news(model))
    assert vectors.ndim == (3 if model.personal else 2)
    close(model(news_vectors=vectors, **USERS), expected)
    users, _ = model.encode_users(vectors, USERS["history"], USERS["history_mask"], USERS["user_ids"])
    torch.testing.assert_close(users, expected.user_vectors)


@pytest.mark.slow
@every
def test_every_weight_takes_part_and_batches_add_up(form: str) -> None:
    # Nobody is hidden.
    hidden = {"recommender_options": {"hidden": 0.0}} if form.startswith(("lstur", "longspan")) else {}
    model = build(form, torch.float32, **hidden).train()
    whole = model(**batch(model), labels=LABELS)
    whole.loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    model.zero_grad()
    assert model.accepts_loss_kwargs
    for row in range(4):
        part = {name: column[row : row + 1] for name, column in USERS.items()}
        count = model.count_items(LABELS)
        model(**news(model), **part, labels=LABELS[row : row + 1], num_items_in_batch=count).loss.backward()
    for name, p in model.named_parameters():
        assert p.grad is not None
        # Float32 sums in another order.
        torch.testing.assert_close(p.grad, gradients[name], rtol=1e-4, atol=1e-6, msg=name)


@every
@torch.no_grad()
def test_bfloat16_stays_close(form: str) -> None:
    model = build(form, torch.float32, initializer_range=0.1)
    expected = model(**batch(model), labels=LABELS)
    found = model.to(torch.bfloat16)(**batch(model), labels=LABELS)
    assert found.logits.dtype == torch.bfloat16
    assert found.loss.dtype == torch.float32
    # A few roundings to 8 bits, relative to the largest score.
    scale = expected.logits.abs().max().item()
    torch.testing.assert_close(found.logits.float(), expected.logits, rtol=0.05, atol=0.05 * scale)


@pytest.mark.slow
@every
@torch.no_grad()
def test_models_are_saved_with_all_that_makes_them(form: str, tmp_path: Path) -> None:
    model = build(form, torch.float32)
    model.save_pretrained(tmp_path)
    again = LongspanForRecommendation.from_pretrained(tmp_path).eval()
    close(again(**batch(model)), model(**batch(model)))


@pytest.mark.slow
@pytest.mark.usefixtures("no_shape_checks")
@torch.no_grad()
def test_the_model_compiles_in_one_piece() -> None:
    torch._dynamo.reset()
    model = build("nrms", torch.float32)
    expected = model(**batch(model), labels=LABELS)
    compiled: Any = torch.compile(model, backend="aot_eager", fullgraph=True)
    found = compiled(**batch(model), labels=LABELS)
    torch.testing.assert_close(found.logits, expected.logits)
    torch.testing.assert_close(found.loss, expected.loss)


@pytest.mark.parametrize("name", recommenders.names())
def test_word_vectors_are_the_input_embeddings(name: str, tmp_path: Path) -> None:
    class Words:
        """As much of a tokenizer as is asked."""

        def get_vocab(self) -> dict[str, int]:
            return {"mosque": 3, "park": 4}

        def convert_tokens_to_string(self, tokens: list[str]) -> str:
            return tokens[0]

        def convert_ids_to_tokens(self, number: int) -> str:
            return {3: "mosque", 4: "park"}[number]

    model, path = build(name, embedding_dim=4), tmp_path / "vectors.txt"
    path.write_text("mosque 1 2 3 4\n", encoding="utf-8")
    tokenizer: Any = Words()
    assert load_word_vectors(model.get_input_embeddings(), tokenizer, path) == 1
    assert model.longspan.embeddings.table.weight[3].tolist() == [1, 2, 3, 4]
    model.resize_token_embeddings(40)
    assert model.get_input_embeddings().weight.shape == (40, 4)
    fields = news(model) | {"input_ids": torch.full_like(NEWS["input_ids"], 39)}
    assert model(**fields, **USERS).logits.isfinite().all()


def test_published_models_have_published_word_vectors() -> None:
    assert LongspanConfig().embedding_dim == 256
    assert LongspanForRecommendation.configured(recommender="nrms", dim=64).embedding_dim == 300
    assert LongspanForRecommendation.configured(recommender="nrms", dim=64, embedding_dim=100).embedding_dim == 100


def test_tables_are_what_a_step_reads_little_of() -> None:
    model = build("longspan")
    sizes = {tuple(table.weight.shape) for table in model.tables()}
    assert sizes == {(SIZES["users"] + 1, 8), (SIZES["entities"] + 1, SIZES["entity_dim"])}
    assert build("nrms").tables() == []


def test_documents_are_as_long_as_the_reader_allows() -> None:
    assert limits(build("nrms")) == []
    assert [limit.tokens for limit in limits(build("longspan", position="learned", max_positions=7))] == [7]


def test_fastformer_reads_words_and_not_their_places() -> None:
    """Places are the same in all titles: with vectors for them, items begin alike, and training left them so."""
    model = build("fastformer")
    titles = torch.tensor([[2, 3, 4, 5], [5, 3, 2, 4], [2, 3, 4, 6]])
    vectors = model.encode_news(input_ids=titles)
    torch.testing.assert_close(vectors[1], vectors[0])
    assert (vectors[2] - vectors[0]).norm() > 0.1 * vectors[0].norm()


def test_positions_count_back_from_the_newest() -> None:
    """So that what an old click says does not depend on how many there were before it."""
    model = build("longspan", user_position="learned", max_positions=4, user_depth=0, norm="none")
    vectors = model.encode_news(**news(model))
    table = model.recommender.positions.table
    long = torch.tensor([[1, 2, 3, 4, 5, 6]])
    users, _ = model.encode_users(vectors, long)
    # The oldest two share what the last number has.
    items, own = vectors[long], model.recommender
    y = items + table.weight[torch.tensor([3, 3, 3, 2, 1, 0])]
    mean = own.pooling(y, torch.ones(1, 6).bool(), values=items)[0]
    outputs = own.pooling(y, torch.ones(1, 6).bool())[0]
    unknown = torch.zeros(1).long()
    torch.testing.assert_close(users, own.user_vector(mean, outputs, unknown), rtol=1e-6, atol=1e-7)


def test_mixers_have_their_own_options() -> None:
    options = {"local": {"radius": 2}, "recurrent": {"cell": "gru"}}
    model = build("longspan", mixers=["recurrent"], user_mixers=["local"], mixer_options=options, forget="none")
    assert type(model.longspan.backbone.blocks[0].mixer).__name__ == "Recurrent"
    assert type(model.recommender.clicks.blocks[0].mixer).__name__ == "Local"
    with pytest.raises(UserError, match="mixer_options names 'softmax'"):
        build("longspan", user_mixers=["local"], mixer_options={"softmax": {}})
    # What one of both knows is for that one.
    model = build("longspan", mixers=["softmax"], user_mixers=["additive"], forget="input")
    assert model.recommender.clicks.blocks[0].mixer.forgetting.kind == "input"
    with pytest.raises(UserError, match="a mixer that can forget"):
        build("longspan", mixers=["softmax"], user_mixers=["local"], forget="input")


def test_what_cannot_be_is_one_sentence() -> None:
    model = build("longspan")
    fields = batch(model)
    wrong: list[tuple[dict[str, Any], str]] = [
        (fields | {"news_vectors": torch.zeros(7, 8)}, "either input_ids or news_vectors, got both"),
        (USERS, "either input_ids or news_vectors, got both or neither"),
        (fields | {"candidates": None}, "expected candidates to score, got none"),
        (fields | {"category_ids": None}, "expected category_ids with categories=3, got none; give them"),
        (USERS | {"news_vectors": torch.zeros(7, 8), "entity_ids": NEWS["entity_ids"]}, "got entity_ids too"),
        (fields | {"output_attentions": True}, "mixers return no attention maps"),
        (fields | {"labels": LABELS[:, :2]}, r"labels of \(4, 3\)"),
    ]
    for given, message in wrong:
        with pytest.raises(UserError, match=message):
            model(**given)
    with pytest.raises(UserError, match=r"expected no category_ids with categories=0, got some; leave them out"):
        build("longspan", categories=0)(**fields)
    for changes, message in (
        ({"causal": True}, "set user_causal=True"),
        ({"recommendation_loss": "soft-max"}, "no recommendation_loss 'soft-max'; did you mean 'softmax'"),
        ({"user_position": "rotary"}, "no user_position 'rotary'"),
        ({"user_position": "learned", "user_causal": True}, "counts back from the newest click"),
        ({"entities": 0}, "entities=0 with entity_dim=4"),
        ({"users": -1}, "users must be at least 0"),
    ):
        with pytest.raises(UserError, match=message):
            build("longspan", **changes)


def test_memory_is_linear_in_clicks() -> None:
    """Bytes kept for the backward pass, counted, at 10,000 clicks and at half of them."""
    model, kept = build("longspan", torch.float32), []
    vectors = torch.randn(7, 8)
    for clicks in (5000, 10_000):
        total = 0

        def count(tensor: Tensor) -> Tensor:
            nonlocal total
            total += tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            model.encode_users(vectors, torch.randint(0, 7, (1, clicks)))
        kept.append(total)
    assert kept[1] < 2.1 * kept[0]
    assert kept[1] < 10_000 * 8 * 4 * 100


def test_what_the_page_shows_works(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "recommenders.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    exec(code, {})
    assert "tensor([[" in capsys.readouterr().out
    assert all(f"| `{name}` |" in page.read_text(encoding="utf-8") for name in recommenders.names())


class Scores(nn.Module):
    """A program that scores: news that were read, users by what they clicked."""

    def __init__(self, model: LongspanForRecommendation) -> None:
        super().__init__()
        self.model = model

    def forward(self, vectors: Tensor, history: Tensor, history_mask: Tensor, candidates: Tensor) -> Tensor:
        users = {"history": history, "history_mask": history_mask, "candidates": candidates}
        logits: Tensor = self.model(news_vectors=vectors, **users).logits
        return logits


@pytest.mark.slow
@pytest.mark.parametrize("name", ["longspan", "lstur"])
@pytest.mark.usefixtures("no_shape_checks")
@torch.no_grad()
def test_scores_are_exported_for_any_number_of_users_clicks_and_news(name: str) -> None:
    model = build(name, torch.float32)
    columns = [USERS[name].clamp_min(0) for name in ("history", "history_mask", "candidates")]
    given = (model.encode_news(**news(model)), *columns)
    b, h, n = (torch.export.Dim(size, min=2, max=1000) for size in "bhn")
    program = torch.export.export(Scores(model), given, dynamic_shapes=({0: n}, {0: b, 1: h}, {0: b, 1: h}, {0: b}))
    fewer = (given[0][:5], *(column[:3, :3].clamp_max(4) for column in columns))
    torch.testing.assert_close(program.module()(*fewer), Scores(model)(*fewer), rtol=1e-5, atol=1e-6)


class Mine(Naml):
    """What somebody else wrote."""

    def __init__(self, config: LongspanConfig, *, wider: int = 2) -> None:
        super().__init__(config, filters=3 * wider)


def test_anybody_can_write_one(tmp_path: Path) -> None:
    model = build("longspan", recommender=f"{__name__}.Mine", recommender_options={"wider": 3}, dtype=torch.float32)
    assert (type(model.recommender), model.recommender.dim) == (Mine, 9)
    model.save_pretrained(tmp_path)
    again = LongspanForRecommendation.from_pretrained(tmp_path).eval()
    close(again(**batch(model)), model(**batch(model)))
    with pytest.raises(UserError, match=r"has no option 'wide'; did you mean 'wider'"):
        build("longspan", recommender=f"{__name__}.Mine", recommender_options={"wide": 3})


def test_streaming_forms_are_those_that_say_so() -> None:
    assert [form for form in FORMS if build(form).recommender.streams] == sorted(STREAMING, key=list(FORMS).index)
