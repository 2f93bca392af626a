"""Programs of whole models in both formats, where mixers need more than common operators."""

import pytest
import torch

from longspan import LongspanConfig, LongspanForCausalLM, LongspanForSequenceClassification
from longspan.models.wide.classifier import ngram_counts, spelled
from longspan.programs import making, onnx

pytestmark = pytest.mark.usefixtures("no_shape_checks")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mixer", "options", "causal", "wide"),
    # Loops over positions and over blocks, sorts, the closed form of a scan.
    [
        ("recurrent", {}, False, False),
        ("relative", {}, True, False),
        ("linformer", {"max_length": 300}, False, True),
        ("recurrent", {"cell": "sru"}, True, False),
    ],
)
def test_files_of_both_formats_give_what_the_model_gives(mixer, options, causal, wide, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    config = LongspanForSequenceClassification.configured(
        vocab_size=20,
        dim=8,
        depth=1,
        heads=2,
        mixers=[mixer],
        mixer_options={mixer: options},
        causal=causal,
        num_labels=3,
        wide=wide,
        wide_buckets=1000,
        wide_characters=wide,
    )
    model = (LongspanForCausalLM if causal else LongspanForSequenceClassification)(config).eval().requires_grad_(False)
    if wide:
        knows_some(model.wide)
    program = making.export_program(model, options.get("max_length"))
    making.save_torch(program, tmp_path / "model.pt2")
    onnx.save_onnx(program, tmp_path / "model.onnx")
    runs = making.load_torch(tmp_path / "model.pt2"), onnx.load_onnx(tmp_path / "model.onnx")
    for rows, length in ((1, 1), (3, 2), (2, 33), (1, 300)):
        ids, mask = torch.randint(1, 20, (rows, length)), torch.ones(rows, length, dtype=torch.long)
        mask[-1, length - length // 3 :] = 0
        expected = model(input_ids=ids, attention_mask=mask).logits
        real = mask.bool() if causal else slice(None)
        for run in runs:
            torch.testing.assert_close(run(ids, mask)[real], expected[real], rtol=1e-4, atol=1e-5)


def knows_some(wide):
    """Give n-grams that texts have places and weights."""
    wide.spelling.copy_(spelled(["", *(word * 2 for word in "abcdefghijklmnopqrs")]))
    hashes, times = ngram_counts(torch.randint(1, 20, (1, 300)), None, wide.spelling)
    hashes = hashes[times > 0].int()
    wide.keys[hashes % wide.buckets] = hashes
    for tensor in (wide.weight, wide.tfidf_weight, wide.ratio, wide.idf):
        tensor[hashes % wide.buckets] = torch.rand(len(hashes), *tensor.shape[1:])
    wide.scales.copy_(torch.tensor([0.75, 0.5]))


@pytest.mark.slow
def test_longer_texts_than_the_model_takes_are_refused_by_the_program(tmp_path):
    config = LongspanConfig(vocab_size=20, dim=8, depth=1, heads=2, position="learned", max_positions=12, num_labels=3)
    program = making.export_program(LongspanForSequenceClassification(config).eval(), 12)
    making.save_torch(program, tmp_path / "model.pt2")
    run = making.load_torch(tmp_path / "model.pt2")
    ids = torch.ones(1, 13, dtype=torch.long)
    assert run(ids[:, :12], ids[:, :12]).shape == (1, 3)
    with pytest.raises((RuntimeError, AssertionError), match="12"):
        run(ids, ids)
