"""Encoder-decoder models: steps against whole passes, padding, generation, label smoothing, copying."""

import copy
from pathlib import Path
from typing import Any

import checkpointing
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, DataCollatorForSeq2Seq

from longspan import LongspanForCausalLM, LongspanForSeq2SeqLM, UserError, mixers
from longspan.models import LongspanConfig, MixerStates
from longspan.models.decoder import decoder_config
from longspan.models.heads import seq2seq
from longspan.models.parts import losses
from longspan.models.parts.copying import CopyAttention

CROSS = [name for name in mixers.names() if mixers.load(name).capabilities.context]
# Encoders, decoders and what connects them.
FORMS: dict[str, dict[str, Any]] = {name: {"cross_attention": [name]} for name in CROSS} | {
    "hybrid": {
        "mixers": ["local", "additive"],
        "decoder_mixers": ["lstm", "local"],
        "cross_attention": ["softmax", "linear"],
        "mixer_options": {"local": {"radius": 3}},
        "decoder_depth": 3,
        "ngrams": [2],
        "ngram_buckets": 50,
    },
    "convolved": {"decoder_mixers": ["linear"], "decoder_forget": "input", "decoder_short_convolution": 3},
    "shared": {"share_layers": True, "norm": "post", "position": "learned", "max_positions": 40},
    "two vocabularies": {"shared_vocabulary": False, "target_vocab_size": 31, "embedding_dim": 8},
    "copying": {"copy": True},
}
every = pytest.mark.parametrize("form", FORMS)
ROWS, SOURCE, TARGET = 3, 9, 7
START, END = 1, 2


def settings(form: str, **changes: Any) -> dict[str, Any]:
    shape: dict[str, Any] = {"vocab_size": 29, "dim": 16, "heads": 2, "depth": 2, "dropout": 0.0, "mixers": ["softmax"]}
    shape |= {"initializer_range": 0.3, "decoder_start_token_id": START, "eos_token_id": END}
    return shape | FORMS[form] | changes


def build(form: str, **changes: Any) -> LongspanForSeq2SeqLM:
    """A model in float64, whose rounding decides no choice between tokens."""
    torch.manual_seed(3)
    model = LongspanForSeq2SeqLM(LongspanForSeq2SeqLM.configured(**settings(form, **changes)))
    for part in (model.longspan, model.decoder):
        if part.embeddings.ngrams is not None:
            # New ones are zero, as none has been met.
            nn.init.normal_(part.embeddings.ngrams.weight[1:])
    return model.double().eval()


def tokens(rows: int, length: int) -> Tensor:
    return torch.randint(3, 29, (rows, length), generator=torch.Generator().manual_seed(rows * 100 + length))


def batch() -> dict[str, Tensor]:
    """Sources padded on the right, one on the left."""
    mask = torch.ones(ROWS, SOURCE, dtype=torch.long)
    mask[1, 6:] = 0
    mask[2, :4] = 0
    return {"input_ids": tokens(ROWS, SOURCE), "attention_mask": mask}


def close(actual: Tensor, expected: Tensor) -> None:
    # Sinusoids are float32 inside; everything else is float64.
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)


def logits(model: LongspanForSeq2SeqLM, target: Tensor, **given: Any) -> Tensor:
    found: Tensor = model(**batch() | given, decoder_input_ids=target, use_cache=False).logits
    return found


@pytest.mark.slow
@every
@torch.inference_mode()
def test_steps_are_the_whole_pass(form: str) -> None:
    model, target = build(form), tokens(ROWS, TARGET)
    mask = torch.ones_like(target)
    mask[0, :3] = 0
    mask[1, 2] = 0
    real = mask.bool()
    expected = logits(model, target, decoder_attention_mask=mask)[real]
    encoded = model.get_encoder()(**batch())
    for size in (1, 3, TARGET):
        states, parts = None, []
        for start in range(0, TARGET, size):
            part = slice(start, start + size)
            # Only the first call reads the source.
            source = {**batch(), "encoder_outputs": encoded} if states is None else {}
            output = model(
                **source,
                decoder_input_ids=target[:, part],
                decoder_attention_mask=mask[:, part],
                past_key_values=states,
                use_cache=True,
            )
            states = output.past_key_values
            parts.append(output.logits)
        close(torch.cat(parts, 1)[real], expected)


@pytest.mark.slow
@every
@torch.inference_mode()
def test_padding_and_other_rows_change_nothing(form: str) -> None:
    model, labels = build(form), tokens(ROWS, TARGET)
    lengths = (TARGET, 4, 5)
    alone = []
    for row, (ids, mask, length) in enumerate(zip(*batch().values(), lengths, strict=True)):
        output = model(input_ids=ids[mask.bool()][None], labels=labels[row, :length][None])
        alone.append((output.losses[0], output.logits[0]))
    for side in ("left", "right"):
        padded, where = torch.full_like(labels, -100), []
        for row, length in enumerate(lengths):
            start = TARGET - length if side == "left" else 0
            padded[row, start : start + length] = labels[row, :length]
            where.append(slice(start, start + length))
        output = model(**batch(), labels=padded)
        for row, (part, (expected, scores)) in enumerate(zip(where, alone, strict=True)):
            close(output.losses[row, part], expected)
            close(output.logits[row, part], scores)
        assert (output.losses[padded == -100] == 0).all()
        close(output.loss, output.losses.sum() / sum(lengths))


@torch.inference_mode()
def test_labels_are_read_one_position_later() -> None:
    model, labels = build("softmax"), tokens(2, 4)
    labels[0, 2:] = -100
    labels[1, :1] = -100
    ids, mask = model._behind_start(labels)
    a, b = labels
    assert ids.tolist() == [[START, a[0], a[1], 0], [0, START, b[1], b[2]]]
    assert mask is not None
    assert mask.tolist() == [[True, True, True, False], [False, True, True, True]]
    assert model._behind_start(labels.clamp_min(0))[1] is None
    found = DataCollatorForSeq2Seq(_Tokenizer(), model)([{"input_ids": [4, 5], "labels": [6, 7, 8]}])
    assert found["decoder_input_ids"].tolist() == [[START, 6, 7]]
    source = {name: tensor[:2] for name, tensor in batch().items()}
    close(
        model(**source, labels=labels).losses,
        model(**source, labels=labels, decoder_input_ids=ids, decoder_attention_mask=mask).losses,
    )


class _Tokenizer:
    """What the collator asks of a tokenizer."""

    padding_side = "right"
    pad_token_id = 0

    def pad(self, features: list[dict[str, Any]], **_: Any) -> dict[str, Tensor]:
        return {name: torch.tensor([each[name] for each in features]) for name in features[0]}


@every
@torch.inference_mode()
def test_no_position_sees_a_later_one(form: str) -> None:
    model, target = build(form), tokens(ROWS, TARGET)
    other = target.clone()
    other[:, 4:] = other[:, 4:] % 20 + 5
    assert (other != target)[:, 4:].any()
    close(logits(model, target)[:, :4], logits(model, other)[:, :4])


@every
@torch.inference_mode()
def test_the_source_is_read(form: str) -> None:
    model, target = build(form), tokens(ROWS, TARGET)
    changed = batch()["input_ids"].clone()
    changed[0, 5] = 3 + (changed[0, 5] + 1) % 20
    difference = (logits(model, target) - logits(model, target, input_ids=changed)).abs().amax((1, 2))
    assert difference[0] > 1e-4
    assert (difference[1:] == 0).all()


@pytest.mark.slow
@every
@torch.inference_mode()
def test_generation_is_the_choice_from_whole_passes(form: str) -> None:
    model, source = build(form), batch()
    options = {"max_new_tokens": 8, "eos_token_id": None}
    chosen = torch.full((ROWS, 1), START)
    for _ in range(8):
        chosen = torch.cat((chosen, logits(model, chosen)[:, -1:].argmax(-1)), 1)
    assert torch.equal(model.generate(**source, **options), chosen)
    encoded = model.get_encoder()(**source)
    assert torch.equal(model.generate(**source, encoder_outputs=encoded, **options), chosen)
    for how in ({"do_sample": True, "top_k": 0}, {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 2.0}):
        found = []
        for given in ({"use_cache": False}, {"use_cache": True}, {"encoder_outputs": encoded}):
            torch.manual_seed(5)
            found.append(model.generate(**source, max_new_tokens=8, **how, **given))
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[1], found[2])
        assert len(found[0]) == ROWS * how.get("num_return_sequences", 1)


@pytest.mark.slow
@every
@torch.inference_mode()
def test_rows_of_a_batch_generate_as_if_alone(form: str) -> None:
    model, source = build(form), batch()
    prompts = torch.tensor([[START, 7, 9], [0, START, 5], [0, 0, START]])
    mask = (prompts != 0).long()
    for how in ({}, {"num_beams": 3}):
        options = {**how, "min_new_tokens": 6, "max_new_tokens": 6}
        together = model.generate(**source, decoder_input_ids=prompts, decoder_attention_mask=mask, **options)
        for row in range(ROWS):
            kept = source["attention_mask"][row].bool()
            ids, prompt = source["input_ids"][row][kept][None], prompts[row][mask[row].bool()][None]
            alone = model.generate(input_ids=ids, decoder_input_ids=prompt, **options)
            assert torch.equal(together[row, 3:], alone[0, prompt.shape[1] :])


@torch.inference_mode()
def test_beams_are_ranked_by_their_scores() -> None:
    model, source = build("linear"), batch()
    options = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 6, "length_penalty": 0.7}
    found = model.generate(**source, **options, output_scores=True, return_dict_in_generate=True)
    for number, (ids, score) in enumerate(zip(found.sequences, found.sequences_scores, strict=True)):
        one = {name: tensor[number // 4][None] for name, tensor in source.items()}
        new = ids[1:][ids[1:] != 0]
        labels = new[None]
        total = -model(**one, labels=labels).losses.sum()
        close(score, (total / len(new) ** 0.7).to(score))
    scores = found.sequences_scores.view(ROWS, 4)
    assert (scores[:, :-1] >= scores[:, 1:]).all()


@pytest.mark.parametrize("form", ["linear", "copying", "hybrid"])
@torch.inference_mode()
def test_the_source_is_read_once_per_generation(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, read = build(form), []
    for block in {id(each): each for each in model.decoder.backbone.layers}.values():
        own = block.cross_mixer.read_context

        def watched(context: Tensor, mask: Tensor | None, own: Any = own) -> Any:
            read.append(len(context))
            return own(context, mask)

        monkeypatch.setattr(block.cross_mixer, "read_context", watched)
    model.generate(**batch(), num_beams=4, max_new_tokens=5)
    # Not once per beam, either.
    assert read == [ROWS] * model.decoder.config.depth


@torch.inference_mode()
def test_candidates_of_the_prompt_change_nothing() -> None:
    for form in ("linear", "copying"):
        model = build(form)
        source = {name: tensor[:1] for name, tensor in batch().items()}
        options = {"max_new_tokens": 12, "eos_token_id": None}
        expected = model.generate(**source, **options)
        assert torch.equal(model.generate(**source, **options, prompt_lookup_num_tokens=3), expected)


@pytest.mark.slow
@every
@torch.inference_mode()
def test_states_are_saved_reordered_and_reset(form: str) -> None:
    model, target = build(form), tokens(ROWS, TARGET)
    states = model(**batch(), decoder_input_ids=target[:, :4], use_cache=True).past_key_values
    expected = logits(model, target)[:, 4:]

    def follow(states: MixerStates, rows: list[int]) -> Tensor:
        output = model(decoder_input_ids=target[rows][:, 4:], past_key_values=states)
        found: Tensor = output.logits
        return found

    close(follow(states, [0, 1, 2]), expected)
    read = model.decoder.states_from(states.tensors())
    close(follow(read, [0, 1, 2]), expected)
    assert read.nbytes == states.nbytes
    close(model(decoder_input_ids=target[:, 4:], cache=states).logits, expected)
    moved = copy.deepcopy(states)
    moved.reorder_cache(torch.tensor([2, 0, 0]))
    close(follow(moved, [2, 0, 0]), expected[[2, 0, 0]])
    close(follow(states, [0, 1, 2]), expected)
    # Beams share what is kept of their source, and take it along where they change places with those of another.
    for beams in ([1, 0, 3, 3, 4, 5], [5, 0, 3, 1, 2, 2]):
        moved = copy.deepcopy(states)
        moved.batch_repeat_interleave(2)
        moved.reorder_cache(torch.tensor(beams))
        rows = [beam // 2 for beam in beams]
        close(follow(moved, rows), expected[rows])
    # A row that starts again reads the same source.
    again = model(decoder_input_ids=target, past_key_values=states.reset(torch.tensor([True, False, False])))
    close(again.logits[0], logits(model, target)[0])


@pytest.mark.parametrize("form", ["linear", "copying"])
@torch.inference_mode()
def test_a_source_without_tokens_is_none(form: str) -> None:
    model, target = build(form), tokens(ROWS, TARGET)
    source = batch()
    source["attention_mask"][1] = 0
    found = model(**source, decoder_input_ids=target).logits
    assert found.isfinite().all()
    close(found[0], logits(model, target)[0])
    other = {**source, "input_ids": source["input_ids"].roll(1, 0)}
    close(model(**other, decoder_input_ids=target).logits[1], found[1])
    steps = model.generate(**source, max_new_tokens=4)
    assert torch.equal(steps, model.generate(**source, max_new_tokens=4, use_cache=False))


@pytest.mark.parametrize("form", ["softmax", "two vocabularies", "copying"])
def test_label_smoothing_is_its_formula(form: str) -> None:
    smoothing = 0.1
    model, labels = build(form, label_smoothing=smoothing).train(), tokens(ROWS, TARGET)
    labels[0, 4:] = -100
    output = model(**batch(), labels=labels)
    model.eval()
    plain = model(**batch(), labels=labels)
    known = labels != -100
    if form == "copying":
        # The share of all tokens is that of the vocabulary alone.
        body = model.decoder(
            model._behind_start(labels)[0],
            attention_mask=model._behind_start(labels)[1],
            context=plain.encoder_last_hidden_state,
            context_mask=batch()["attention_mask"],
        )
        spread = model.lm_head(body.last_hidden_state).log_softmax(-1)
    else:
        spread = plain.logits.log_softmax(-1)
    uniform = -spread.mean(-1)[known]
    own = -plain.logits.log_softmax(-1).gather(2, labels.clamp_min(0).unsqueeze(2))[..., 0][known]
    close(plain.losses[known], own)
    close(output.losses, plain.losses)
    close(output.loss, ((1 - smoothing) * own + smoothing * uniform).mean())
    close(output.plain_loss, plain.loss)
    assert plain.plain_loss is None
    if form == "softmax":
        close(
            output.loss,
            nn.functional.cross_entropy(plain.logits[known], labels[known], label_smoothing=smoothing),
        )


def test_gradients_of_smoothing_are_those_of_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for logits_to_keep, chunk in ((0, losses.CHUNK), (None, losses.CHUNK), (None, 64)):
        monkeypatch.setattr(losses, "CHUNK", chunk)
        model, labels = build("softmax", label_smoothing=0.2).train(), tokens(ROWS, TARGET)
        labels[1, 5:] = -100
        output = model(**batch(), labels=labels, logits_to_keep=logits_to_keep)
        assert (output.logits is None) == (logits_to_keep is None)
        loss = output.loss
        if logits_to_keep == 0:
            known = labels != -100
            loss = nn.functional.cross_entropy(output.logits[known], labels[known], label_smoothing=0.2)
        loss.backward()
        found.append([p.grad for p in model.parameters() if p.grad is not None])
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            close(one, two)


def naive_copying(attention: CopyAttention, hidden: Tensor, scores: Tensor, source: dict[str, Tensor]) -> Tensor:
    """Return p of each token, position by position."""
    gate = attention.gate(hidden).sigmoid()
    p = scores.softmax(-1) * gate
    keys = attention.key(source["encoded"])
    query = attention.query(hidden)
    for b, t in torch.cartesian_prod(torch.arange(hidden.shape[0]), torch.arange(hidden.shape[1])).tolist():
        real = source["mask"][b].bool()
        if not real.any():
            p[b, t] = scores[b, t].softmax(-1)
            continue
        shares = (keys[b, real] @ query[b, t] / keys.shape[-1] ** 0.5).softmax(0)
        for token, share in zip(source["ids"][b, real], shares, strict=True):
            p[b, t, token] = p[b, t, token] + (1 - gate[b, t, 0]) * share
    return p


def test_copying_is_the_naive_form(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    attention = CopyAttention(16).double()
    ids = tokens(ROWS, SOURCE) % 11
    mask = batch()["attention_mask"].bool()
    mask[2] = False
    encoded = torch.randn(ROWS, SOURCE, 16, dtype=torch.double, requires_grad=True)
    hidden = torch.randn(ROWS, TARGET, 16, dtype=torch.double, requires_grad=True)
    scores = torch.randn(ROWS, TARGET, 29, dtype=torch.double, requires_grad=True)
    targets = tokens(ROWS, TARGET) % 13
    inputs = (encoded, hidden, scores, *attention.parameters())
    expected = naive_copying(attention, hidden, scores, {"encoded": encoded, "mask": mask, "ids": ids})
    wanted = expected.gather(2, targets.unsqueeze(2))[..., 0].log()
    gradients = torch.autograd.grad(wanted.sum(), inputs, retain_graph=True)
    both = (targets.unsqueeze(2) == ids.unsqueeze(1)).any(2) & mask.any(1, keepdim=True)
    assert both.any()
    assert not both.all()
    for chunk in (losses.CHUNK, 2 * ROWS * SOURCE):
        monkeypatch.setattr("longspan.models.parts.copying.CHUNK", chunk)
        source = attention.source_keys(encoded, ids, mask)
        nats = nn.functional.cross_entropy(scores.mT, targets, reduction="none")
        found = attention.losses(hidden, nats, targets, source)
        torch.testing.assert_close(found, -wanted)
        torch.testing.assert_close(torch.autograd.grad(-found.sum(), inputs), gradients)
    log_p = attention.log_probabilities(hidden, scores, attention.source_keys(encoded, ids, mask))
    torch.testing.assert_close(log_p, expected.log())
    found_gradients = torch.autograd.grad(log_p.gather(2, targets.unsqueeze(2)).sum(), inputs)
    torch.testing.assert_close(found_gradients, gradients)


def test_copying_counts_in_losses_as_in_logits() -> None:
    model, labels = build("copying"), tokens(ROWS, TARGET)
    # Tokens that the sources have.
    labels[:, :4] = batch()["input_ids"][:, 4:8]
    labels[0, 5:] = -100
    whole = model(**batch(), labels=labels)
    model.train()
    part = model(**batch(), labels=labels)
    assert part.logits is None
    close(whole.losses, part.losses)
    close(whole.logits.exp().sum(-1), torch.ones(ROWS, TARGET, dtype=torch.double))


@pytest.mark.slow
@every
def test_models_learn_to_repeat_their_source(form: str) -> None:
    """A loss that falls far below that of the tokens' frequencies: what is said went through the context."""
    model = build(form, label_smoothing=0.0).float().train()
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    nats = []
    for _ in range(60):
        ids = torch.randint(3, 9, (16, 1), generator=generator).expand(16, 4)
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        nats.append(loss.item())
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.lm_head.parameters())
    # Six tokens are as likely: log 6 = 1.8 nats for the first of each row without the source, 0.4 on average.
    assert nats[-1] < 0.2 < nats[0]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["linear", "hybrid", "two vocabularies", "copying"])
def test_saved_models_are_the_same(form: str, tmp_path: Path) -> None:
    model, target = build(form), tokens(ROWS, TARGET)
    model.save_pretrained(tmp_path)
    read = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.double).eval()
    assert isinstance(read, LongspanForSeq2SeqLM)
    close(logits(read, target), logits(model, target))
    config = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(config, LongspanConfig)
    assert config.is_encoder_decoder
    assert config.head == model.config.head
    assert read.generation_config.decoder_start_token_id == START
    assert torch.equal(read.generate(**batch(), max_new_tokens=5), model.generate(**batch(), max_new_tokens=5))
    table = read.longspan.embeddings.table.weight
    shared = form != "two vocabularies"
    assert (read.decoder.embeddings.table.weight is table) == shared
    assert read.lm_head.weight is read.decoder.embeddings.table.weight
    body = AutoModel.from_pretrained(tmp_path)
    assert torch.equal(body.embeddings.table.weight, table.float())


def test_only_this_head_is_an_encoder_with_a_decoder() -> None:
    config = LongspanForSeq2SeqLM.configured(**settings("softmax"))
    assert config.is_encoder_decoder
    assert not LongspanConfig().is_encoder_decoder
    model = LongspanForSeq2SeqLM(LongspanConfig(vocab_size=9, dim=8, heads=2, mixers=["softmax"]))
    assert model.config.is_encoder_decoder
    assert not model.decoder.config.is_encoder_decoder
    other = LongspanForCausalLM(LongspanConfig(vocab_size=9, dim=8, heads=2, causal=True))
    assert not other.config.is_encoder_decoder
    back = config.with_head(LongspanForCausalLM.head_settings)
    assert not back.is_encoder_decoder


def test_embeddings_are_resized_with_the_decoder() -> None:
    model, target = build("copying"), tokens(ROWS, TARGET)
    model.resize_token_embeddings(40)
    assert model.config.vocab_size == model.decoder.config.vocab_size == 40
    assert logits(model, target).shape[-1] == 40
    assert model.lm_head.weight is model.decoder.embeddings.table.weight is model.longspan.embeddings.table.weight
    assert torch.isfinite(model(**batch(), labels=target).loss)
    model.generate(**batch(), max_new_tokens=3)
    with pytest.raises(UserError, match=r"expected two vocabularies .*; use resize_token_embeddings\."):
        model.resize_decoder_token_embeddings(40)


@pytest.mark.parametrize("tied", [True, False])
def test_two_vocabularies_are_resized_each(tied: bool, tmp_path: Path) -> None:
    model, target = build("two vocabularies", tie_word_embeddings=tied), tokens(ROWS, TARGET)
    before = logits(model, target)
    assert model.resize_token_embeddings(45) is model.longspan.embeddings.table
    assert (model.config.vocab_size, model.config.head.target_vocab_size) == (45, 31)
    # No new token has been met.
    assert torch.equal(logits(model, target), before)
    assert model.resize_decoder_token_embeddings(50) is model.decoder.embeddings.table
    assert (model.config.vocab_size, model.config.head.target_vocab_size, model.decoder.config.vocab_size) == (
        45,
        50,
        50,
    )
    after = logits(model, target)
    assert after.shape[-1] == 50
    close(after[..., :31], before)
    assert (model.lm_head.weight is model.decoder.embeddings.table.weight) == tied
    newest = {"input_ids": torch.full((ROWS, SOURCE), 44), "labels": torch.full((ROWS, TARGET), 49)}
    loss = model(**batch() | newest).loss
    assert torch.isfinite(loss)
    model.save_pretrained(tmp_path)
    again = LongspanForSeq2SeqLM.from_pretrained(tmp_path).eval()
    close(again(**batch() | newest).loss, loss)
    model.resize_decoder_token_embeddings(31)
    close(logits(model, target), before)


@pytest.mark.slow
@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("form", ["linear", "copying"])
def test_checkpointed_compiled_and_in_bfloat16(form: str) -> None:
    labels = tokens(ROWS, TARGET)

    def gradients(model: Any) -> list[Tensor]:
        model(**batch(), labels=labels).loss.backward()
        found = [p.grad for p in model.parameters() if p.grad is not None]
        model.zero_grad()
        return found

    model = build(form).train()
    expected = gradients(model)
    checkpointing.enable(model)
    for found, wanted in zip(gradients(model), expected, strict=True):
        close(found, wanted)
    compiled = torch.compile(build(form).train(), backend="aot_eager")
    for found, wanted in zip(gradients(compiled), expected, strict=True):
        close(found, wanted)
    small = build(form).to(torch.bfloat16)
    exact = build(form)(**batch(), labels=labels)
    output = small(**batch(), labels=labels)
    assert output.losses.dtype == torch.float32
    # Three decimal digits per operation, in losses of about 4 nats.
    torch.testing.assert_close(output.loss.double(), exact.loss, rtol=0.05, atol=0.05)
    assert small.generate(**batch(), max_new_tokens=3).shape == (ROWS, 4)


def test_the_decoder_has_the_settings_of_the_head() -> None:
    config = LongspanForSeq2SeqLM.configured(
        **settings(
            "softmax",
            mixers=["local", "softmax"],
            mixer_options={"local": {"radius": 2}},
            short_convolution=3,
            rotary=True,
            decoder_mixers=["linear", "local"],
            decoder_forget="fixed",
            decoder_short_convolution=0,
            decoder_depth=3,
        )
    )
    decoder = decoder_config(config)
    assert (decoder.causal, decoder.depth, decoder.short_convolution, decoder.forget) == (True, 3, 0, "fixed")
    assert decoder.mixers == ["linear", "local"]
    assert decoder.cross_mixers == ["softmax"]
    assert decoder.mixer_options == {"local": {"radius": 2}}
    assert decoder.rotary
    assert decoder_config(LongspanForSeq2SeqLM.configured(**settings("softmax", short_convolution=3))).forget == "none"
    own = LongspanForSeq2SeqLM.configured(**settings("linear", decoder_mixer_options={"linear": {"heads": 4}}))
    layers = LongspanForSeq2SeqLM(own).decoder.backbone.layers
    assert [layer.cross_mixer.heads for layer in layers] == [4, 4]


def refused(match: str, **changes: Any) -> None:
    with pytest.raises(UserError, match=match):
        LongspanForSeq2SeqLM(LongspanForSeq2SeqLM.configured(**settings("softmax", **changes)))


def test_what_cannot_be_is_one_sentence() -> None:
    refused("only the decoder is causal, got causal=True", causal=True)
    refused(r"cross attention in cross_attention, got cross_mixers=\['linear'\]", cross_mixers=["linear"])
    refused("got 'longformer' in mixers, which are the decoder's as", mixers=["longformer"])
    refused("got 'longformer' in decoder_mixers; set", decoder_mixers=["longformer"])
    refused("in model.cross_attention, got 'local'; choose among additive, ", cross_attention=["local"])
    refused("that can forget with decoder_forget='fixed', got softmax", decoder_forget="fixed")
    refused("names 'local', which is not among the decoder's mixers softmax", decoder_mixer_options={"local": {}})
    refused("expected no cutoffs", cutoffs=[5])
    refused("label_smoothing must be from 0 to 1", label_smoothing=2.0)
    refused("decoder_depth must be from 0 to 10000", decoder_depth=-1)
    refused("expected target_vocab_size", shared_vocabulary=False)
    refused("got copy=True and False", shared_vocabulary=False, target_vocab_size=9, copy=True)
    refused("expected no target_vocab_size with a shared vocabulary", target_vocab_size=9)
    refused("one of the target's 9 tokens, too, got 12", shared_vocabulary=False, target_vocab_size=9, pad_token_id=12)
    model, target = build("copying"), tokens(ROWS, TARGET)
    with pytest.raises(UserError, match="or labels, got none of them"):
        model(**batch())
    encoded = model.get_encoder()(**batch())
    with pytest.raises(UserError, match="input_ids of the source for a model with copy=True"):
        model(encoder_outputs=encoded, decoder_input_ids=target)
    states = model.read_source(encoded[0], None, batch()["input_ids"])
    with pytest.raises(UserError, match="either a context or states"):
        model.decoder(target, past_key_values=states, context=encoded[0])
    with pytest.raises(UserError, match="expected decoder_start_token_id in the configuration"):
        build("softmax", decoder_start_token_id=None)(**batch(), labels=target)


def test_decoding_needs_no_source_any_more() -> None:
    model = build("linear")
    states = model(**batch(), decoder_input_ids=tokens(ROWS, 1), use_cache=True).past_key_values
    kept = sum(leaf.numel() for leaf in tree_leaves(states.layers))
    longer = batch()["input_ids"].repeat(1, 5)
    again = model(input_ids=longer, decoder_input_ids=tokens(ROWS, 1), use_cache=True).past_key_values
    # What softmax keeps of its own tokens is the same; what linear keeps of the source does not grow.
    assert sum(leaf.numel() for leaf in tree_leaves(again.layers)) == kept
    assert seq2seq.Seq2SeqSettings.encoder_decoder
