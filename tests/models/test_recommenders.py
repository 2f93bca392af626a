"""Each recommender against its formulas, in float64, row by row, without padding."""

from typing import Any

import pytest
import torch
from recommending import FORMS, NEWS, USERS, batch, build
from torch import Tensor, nn

from longspan import LongspanConfig, LongspanForRecommendation, UserError
from longspan.models import recommenders


def linear(module: Any, x: Tensor) -> Tensor:
    return x @ module.weight.T + (0 if module.bias is None else module.bias)


def pooled(module: Any, x: Tensor, query: Tensor | None = None) -> Tensor:
    """Σ_t softmax_t(q·tanh(V x_t + v)) x_t"""
    if not len(x):
        return x.new_zeros(module.dim)
    query = module.query.weight[0] if query is None else query
    logits = torch.stack([query @ torch.tanh(module.hidden.weight @ each + module.hidden.bias) for each in x])
    return (logits.softmax(0).unsqueeze(1) * x).sum(0)


def convolved(module: Any, words: Tensor) -> Tensor:
    """ReLU(W [w_{t-1}; w_t; w_{t+1}] + b)"""
    weight, bias, out = module.convolution.weight, module.convolution.bias, []
    reach = weight.shape[2] // 2
    for t in range(len(words)):
        total = bias
        for offset in range(-reach, reach + 1):
            if 0 <= t + offset < len(words):
                total = total + weight[:, :, offset + reach] @ words[t + offset]
        out.append(total.relu())
    return torch.stack(out) if out else words.new_zeros(0, len(bias))


def words_of(model: LongspanForRecommendation, which: int, field: str = "input_ids") -> Tensor:
    mask = NEWS["attention_mask" if field == "input_ids" else "abstract_mask"][which].bool()
    ids = NEWS[field][which][mask]
    if not len(ids):
        return torch.zeros(0, model.recommender.reader.dim, dtype=torch.float64)
    found: Tensor = model.longspan(ids.unsqueeze(0)).last_hidden_state[0]
    return found


def number(field: str, which: int) -> int:
    return int(NEWS[field][which])


def attended(module: Any, x: Tensor) -> Tensor:
    """softmax(QKᵀ/√e)V, head by head."""
    heads = []
    for head in range(module.heads):
        e = module.query.weight.shape[0] // module.heads
        q, k, v = (x @ each.weight[head * e : (head + 1) * e].T for each in (module.query, module.key, module.value))
        heads.append((q @ k.T / e**0.5).softmax(1) @ v)
    return torch.cat(heads, 1)


def nrms(model: Any, which: int, user: int) -> Tensor:
    own, words = model.recommender, words_of(model, which)
    return pooled(own.word_pooling, attended(own.words, words) if len(words) else words)


def nrms_user(model: Any, clicked: Tensor, user: int) -> Tensor:
    own = model.recommender
    return pooled(own.click_pooling, attended(own.clicks, clicked) if len(clicked) else clicked)


def text(module: Any, words: Tensor) -> Tensor:
    return pooled(module.pooling, convolved(module.convolution, words))


def naml(model: Any, which: int, user: int) -> Tensor:
    own, views = model.recommender, []
    for module, field in ((own.title, "input_ids"), (own.abstract, "abstract_ids")):
        if len(words := words_of(model, which, field)):
            views.append(text(module, words))
    for module, field in ((own.category, "category_ids"), (own.subcategory, "subcategory_ids")):
        if index := number(field, which):
            views.append(linear(module.dense, module.vectors.weight[index]).relu())
    return pooled(own.view_pooling, torch.stack(views) if views else torch.zeros(0, own.dim).double())


def naml_user(model: Any, clicked: Tensor, user: int) -> Tensor:
    return pooled(model.recommender.click_pooling, clicked)


def lstur(model: Any, which: int, user: int) -> Tensor:
    own = model.recommender
    tables = [own.category.weight[number("category_ids", which)]]
    tables.append(own.subcategory.weight[number("subcategory_ids", which)])
    return torch.cat([text(own.title, words_of(model, which)), *tables])


def lstur_user(model: Any, clicked: Tensor, user: int) -> Tensor:
    own = model.recommender
    long, gru = own.users.vectors.weight[user], own.clicks
    h = long if own.begins else torch.zeros_like(long)
    for n in clicked:
        new = gru.weight_ih_l0 @ n + gru.bias_ih_l0
        old = gru.weight_hh_l0 @ h + gru.bias_hh_l0
        (r_n, z_n, h_n), (r_h, z_h, h_h) = new.chunk(3), old.chunk(3)
        z = torch.sigmoid(z_n + z_h)
        h = (1 - z) * torch.tanh(h_n + torch.sigmoid(r_n + r_h) * h_h) + z * h
    return h if own.begins else torch.cat((h, long))


def npa(model: Any, which: int, user: int) -> Tensor:
    own = model.recommender
    query = linear(own.word_query, own.users.weight[user]).relu()
    return pooled(own.word_pooling, convolved(own.words, words_of(model, which)), query)


def npa_user(model: Any, clicked: Tensor, user: int) -> Tensor:
    own = model.recommender
    return pooled(own.click_pooling, clicked, linear(own.click_query, own.users.weight[user]).relu())


def longspan(model: Any, which: int, user: int) -> Tensor:
    own, there = model.recommender, []
    for module, field in ((own.title, "input_ids"), (own.abstract, "abstract_ids")):
        if module is not None and len(words := words_of(model, which, field)):
            there.append(pooled(module, words))
    for module, field in ((own.category, "category_ids"), (own.subcategory, "subcategory_ids")):
        if module is not None and (index := number(field, which)):
            there.append(module.weight[index])
    if own.entities is not None and len(known := NEWS["entity_ids"][which][NEWS["entity_ids"][which] > 0]):
        there.append(own.entity.weight @ own.entities.weight[known].mean(0))
    return linear(own.item, torch.stack(there).sum(0)) if there else torch.zeros(own.dim).double()


def over_clicks(own: Any, clicked: Tensor) -> tuple[Tensor, Tensor]:
    """The means over the items clicked and over what the layers say of them."""
    if not len(clicked):
        return torch.zeros(own.dim).double(), torch.zeros(own.dim).double()
    numbers = torch.arange(len(clicked) - 1, -1, -1).unsqueeze(0)
    y = own.clicks(own.positions(clicked.unsqueeze(0), numbers))[0]
    logits = torch.tanh(linear(own.pooling.hidden, y)) @ own.pooling.query.weight[0]
    return logits.softmax(0) @ clicked, logits.softmax(0) @ y


def longspan_user(model: Any, clicked: Tensor, user: int) -> Tensor:
    own = model.recommender
    items, outputs = over_clicks(own, clicked)
    vector = items + linear(own.user, outputs)
    return vector if own.users is None else vector + own.users.vectors.weight[user]


def fastformer(model: Any, which: int, user: int) -> Tensor:
    own = model.recommender
    return pooled(own.title, words_of(model, which)) / own.dim**0.25


def fastformer_user(model: Any, clicked: Tensor, user: int) -> Tensor:
    return over_clicks(model.recommender, clicked)[1] / model.recommender.dim**0.25


NAIVE: dict[str, Any] = {
    "nrms": (nrms, nrms_user),
    "naml": (naml, naml_user),
    "lstur": (lstur, lstur_user),
    "npa": (npa, npa_user),
    "longspan": (longspan, longspan_user),
    "fastformer": (fastformer, fastformer_user),
}


def test_every_recommender_has_a_naive_form_here() -> None:
    assert sorted(NAIVE) == recommenders.names()


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_scores_are_those_of_the_formulas(form: str) -> None:
    model = build(form)
    item, of_user = NAIVE[model.config.head.recommender]
    found = model(**batch(model))
    for row, user in enumerate(USERS["user_ids"].tolist()):
        history = USERS["history"][row][USERS["history_mask"][row].bool()].tolist()
        clicked = torch.stack([item(model, which, user) for which in history]) if history else torch.zeros(0, 0)
        vector = of_user(model, clicked.double(), user)
        # Sinusoids are float32 inside; everything else is float64.
        torch.testing.assert_close(found.user_vectors[row], vector, rtol=1e-6, atol=1e-7)
        for column, which in enumerate(USERS["candidates"][row].tolist()):
            real = bool(USERS["candidate_mask"][row, column])
            expected = item(model, which, user) @ vector if real else torch.zeros(()).double()
            torch.testing.assert_close(found.logits[row, column], expected, rtol=1e-6, atol=1e-7)


def test_published_sizes_are_the_defaults() -> None:
    assert recommenders.options("nrms") == {"heads": 20, "head_dim": 20, "query_dim": 200, "dropout": 0.2}
    assert recommenders.options("naml")["filters"] == recommenders.options("npa")["filters"] == 400
    assert recommenders.options("lstur")["combination"] == "ini"
    assert recommenders.options("lstur")["hidden"] == 0.5
    assert recommenders.options("npa")["user_dim"] == 50
    assert [recommenders.word_dim(name) for name in recommenders.names()] == [300, None, 300, 300, 300, 300]


def test_new_layers_begin_as_published() -> None:
    """With weights by the width of layers, not those of `initializer_range`, by which they hardly begin to learn."""
    for name in ("nrms", "naml", "npa"):
        config = LongspanForRecommendation.configured(vocab_size=30, users=3, categories=3, recommender=name)
        model = LongspanForRecommendation(config)
        for module in model.recommender.modules():
            if isinstance(module, (nn.Linear, nn.Conv1d)) and module.weight.numel() > 1000:
                fan = (module.weight.shape[0] + module.weight.shape[1]) * module.weight[0, 0].numel()
                assert module.weight.std().item() == pytest.approx((2 / fan) ** 0.5, rel=0.1)
                assert module.bias is None or not module.bias.any()
        assert model.longspan.embeddings.table.weight[1:].std().item() == pytest.approx(0.02, rel=0.1)
    item = LongspanForRecommendation(LongspanConfig(vocab_size=30)).recommender.item
    assert item.weight.square().sum(1).mean().item() == pytest.approx(256**-0.5, rel=0.1)


def test_users_are_hidden_in_training_alone() -> None:
    model = build("lstur", recommender_options={"hidden": 1.0})
    users = torch.arange(5)
    assert model.recommender.users(users)[1:].all(1).all()
    assert not model.recommender.users(users)[0].any()
    assert not model.train().recommender.users(users).any()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"recommender": "nmrs"}, "no recommender 'nmrs'; did you mean 'nrms'"),
    ({"recommender": "nrms", "recommender_options": {"head": 3}}, "'nrms' has no option 'head'; did you mean 'heads'"),
    ({"recommender": "lstur", "recommender_options": {"combination": "coin"}}, "no combination 'coin'; did you mean"),
    ({"recommender": "lstur", "users": 0}, "expected known users for lstur"),
    ({"recommender": "npa", "users": 0}, "expected known users for npa"),
    ({"recommender": "naml", "mixers": ["softmax"]}, r"model.mixers with layers that it shapes, got \['softmax'\]"),
    ({"recommender": "nrms", "user_causal": True}, "model.user_causal with layers"),
    ({"recommender": "fastformer", "user_mixers": ["local"]}, "model.user_mixers with layers"),
    ({"recommender": "somewhere.Else"}, "code that has not been imported"),
    ({"recommender": "lstur", "recommender_options": {"hidden": 1.5}}, "from 0 to 1, got 1.5"),
    ({"recommender": "lstur", "recommender_options": {"combination": "con", "filters": 7}}, "expected an even width"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_what_cannot_be_is_one_sentence(changes: dict[str, Any], message: str) -> None:
    name = changes["recommender"]
    with pytest.raises(UserError, match=message):
        build(name if name in FORMS else "longspan", **changes)
