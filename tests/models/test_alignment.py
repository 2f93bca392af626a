"""Weights with which a decoder reads its source: those of the chosen layers, at every position."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from longspan import LongspanForSeq2SeqLM, UserError
from longspan.data.batches.streams import Stream
from longspan.models.alignment import aligned_layers, context_weights
from longspan.tasks.base.seq2seq.search import Search, search


def build(cross: list[str], **more: object) -> LongspanForSeq2SeqLM:
    torch.manual_seed(0)
    config = LongspanForSeq2SeqLM.configured(
        vocab_size=30,
        dim=16,
        heads=2,
        depth=3,
        mixers=["linear"],
        cross_attention=cross,
        decoder_start_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        **more,
    )
    return LongspanForSeq2SeqLM(config).eval()


@pytest.mark.parametrize("shared", [False, True])
def test_weights_are_those_of_the_layer(shared: bool) -> None:
    model = build(["softmax"], share_layers=shared)
    source, labels = torch.randint(3, 30, (2, 7)), torch.randint(3, 30, (2, 5))
    mask = torch.ones_like(source)
    mask[1, 4:] = 0
    given = {"input_ids": source, "attention_mask": mask, "labels": labels}
    with torch.no_grad(), context_weights(model, [0, 2]) as found:
        out = model(**given, output_hidden_states=True)
    assert len(found) == 2
    for layer, weights in zip((0, 2), found, strict=True):
        # From the formula: what enters the layer, passes its mixer, and asks for the encoder's outputs.
        block, x = model.decoder.backbone.layers[layer], out.decoder_hidden_states[layer]
        with torch.no_grad():
            x = x + block.mixer(block.mixer_norm(x))
            query = block.cross_mixer.query(block.cross_norm(x)).unflatten(-1, (2, 8))
            key = block.cross_mixer.key(out.encoder_last_hidden_state).unflatten(-1, (2, 8))
            scores = torch.einsum("bthe,bmhe->bhtm", query, key) / 8**0.5
            expected = scores.masked_fill(mask[:, None, None] == 0, -torch.inf).softmax(-1).mean(1)
        # Float32 sums in another order.
        torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        model(**given)
    assert len(found) == 2


def test_the_layers_are_the_last_two_with_weights() -> None:
    assert aligned_layers(build(["softmax"])) == [1, 2]
    assert aligned_layers(build(["softmax", "additive", "linear"])) == [0, 2]
    assert aligned_layers(build(["additive", "additive", "messages"])) == [2]
    with pytest.raises(UserError, match=r"\(bounded_memory, linear, messages, softmax\) for alignments, got additive"):
        aligned_layers(build(["additive"]))
    with pytest.raises(UserError, match="got no layers"):
        aligned_layers(build(["softmax"], decoder_depth=0))


@pytest.mark.slow
def test_threads_that_search_at_once_have_links_of_their_own() -> None:
    model = build(["softmax"])
    sources = torch.randint(3, 30, (12, 7), generator=torch.Generator().manual_seed(1)).tolist()
    how = Search(1, most=8)
    streams = {"input_ids": Stream(mask="attention_mask"), "labels": Stream(fill=-100)}

    @torch.no_grad()
    def links(source: list[int]) -> list[list[int]]:
        found = search(model, [source], how, streams, scored=True, link=lambda row, ids, read: read.argmax(1).tolist())
        return [list(linked) for linked in found.links[0]]

    expected = [links(source) for source in sources]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(links, sources)) == expected
