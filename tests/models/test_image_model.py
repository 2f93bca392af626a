"""Embeddings of images, positions in two dimensions, and the image classifier."""

from typing import Any

import numpy as np
import pytest
import torch

from longspan import LongspanForImageClassification, LongspanImageProcessor, UserError
from longspan.models.parts.grid_positions import GridPositions
from longspan.ops.images import scan

SIZES = {"dim": 16, "depth": 1, "heads": 2, "feed_forward_dim": 16, "dropout": 0.0, "position": "none"}


def model(processor: LongspanImageProcessor, **settings: Any) -> LongspanForImageClassification:
    torch.manual_seed(0)
    width = processor.patch_size**2 * (3 if processor.colour == "rgb" else 1)
    of_data = {"channels": width, "patch": processor.patch_size, "side": 8}
    kind = LongspanForImageClassification
    return kind(kind.configured(**SIZES, **of_data, num_labels=3, **settings)).double().eval()


def images(*sizes: tuple[int, int]) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(0, 256, (*size, 3), np.uint8) for size in sizes]


DEEP = {"stem": 4, "stem_layers": 2, "stem_norm": "batch"}


@pytest.mark.parametrize("settings", [{}, {"stem": 4}, DEEP, {"levels": 16}], ids=["linear", "stem", "deep", "levels"])
@pytest.mark.parametrize("position", ["fourier", "learned", "sinusoidal", "none"])
def test_other_sizes_in_a_batch_change_nothing(settings: dict[str, Any], position: str) -> None:
    patch = 1 if "levels" in settings else 4
    processor = LongspanImageProcessor(patch_size=patch, scan="hilbert")
    one = model(processor, **settings, grid_position=position)
    given = images((8, 4), (4, 8), (6, 7))
    with torch.no_grad():
        together = one(**processor(given, return_tensors="pt")).logits
        alone = torch.cat([one(**processor(each, return_tensors="pt")).logits for each in given])
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("stem", [0, 4])
def test_without_order_all_scans_are_alike(stem: int) -> None:
    """Mean pooling after attention does not depend on the order; the stem reads images, not sequences."""
    logits = []
    for order in ("rows", "hilbert"):
        processor = LongspanImageProcessor(scan=order)
        one = model(processor, mixers=["softmax"], pooling="mean", stem=stem)
        with torch.no_grad():
            logits.append(one(**processor(images((16, 12)), return_tensors="pt")).logits)
    torch.testing.assert_close(*logits)


@pytest.mark.parametrize("layers", [1, 2])
def test_the_stem_is_convolutions_of_the_image(layers: int) -> None:
    processor = LongspanImageProcessor(scan="hilbert")
    embeddings = model(processor, stem=4, stem_layers=layers, grid_position="none").longspan.embeddings.double()
    assert [convolution.stride[0] for convolution in embeddings.convolutions[::layers]] == [1, 2, 2]
    (image,) = images((8, 12))
    batch = processor(image, return_tensors="pt")
    with torch.no_grad():
        found = embeddings({name: batch[name] for name in ("pixel_values", "coordinates")})
        x = torch.tensor((image / 255 - 0.5) * 4).permute(2, 0, 1)[None]
        for convolution, norm in zip(embeddings.convolutions, embeddings.norms, strict=True):
            x = torch.nn.functional.gelu(norm(convolution(x).movedim(1, -1)).movedim(-1, 1))
        cells = scan(2, 3, "hilbert").astype(int)
        expected = embeddings.project(x[0, :, cells[:, 0], cells[:, 1]].T)
    torch.testing.assert_close(found[0], expected)


def test_batch_norms_read_what_is_there() -> None:
    processor, given = LongspanImageProcessor(), images((8, 4), (4, 8))
    embeddings = model(processor, **DEEP).longspan.embeddings.double().train()
    batch = processor(given, return_tensors="pt")
    mask = batch["attention_mask"].bool()
    embeddings({name: batch[name] for name in ("pixel_values", "coordinates")}, mask=mask)
    pixels = [torch.tensor((image / 255 - 0.5) * 4).permute(2, 0, 1)[None] for image in given]
    found = torch.cat([embeddings.convolutions[0](each).flatten(2)[0] for each in pixels], 1)
    norm = embeddings.norms[0]
    torch.testing.assert_close(norm.running_mean, norm.momentum * found.mean(1))


def test_positions_tell_rows_from_columns() -> None:
    cells = torch.tensor(scan(4, 4, "rows").astype(np.int64))[None]
    for name in ("fourier", "learned", "sinusoidal"):
        torch.manual_seed(0)
        vectors = GridPositions(name, 8, 4)(cells)
        assert vectors is not None
        distances = torch.cdist(vectors[0], vectors[0]) + torch.eye(16) * 9
        assert distances.min() > 1e-3, name
    with pytest.raises(UserError, match="at most 3 rows and columns for learned positions, got 4"):
        GridPositions("learned", 8, 3)(cells)


def test_levels_are_a_vector_each() -> None:
    processor = LongspanImageProcessor(colour="grey", patch_size=1)
    embeddings = model(processor, levels=4, grid_position="none").longspan.embeddings
    found = embeddings({"pixel_values": torch.tensor([[[0], [63], [64], [255]]]), "coordinates": torch.zeros(1, 4, 2)})
    assert (found[0] == embeddings.table.weight[[0, 0, 1, 3]]).all()


def test_mixed_labels_weigh_the_losses_of_both() -> None:
    processor = LongspanImageProcessor()
    one = model(processor, problem_type="single_label_classification", label_smoothing=0.1).train()
    batch = processor(images((8, 8), (4, 8)), return_tensors="pt")
    first, second, shares = torch.tensor([0, 1]), torch.tensor([2, 1]), torch.tensor([0.3, 0.9])
    found = one(**batch, labels=first, mixed_labels=second, mixed_shares=shares)

    def losses(labels: torch.Tensor, smoothing: float) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(found.logits, labels, reduction="none", label_smoothing=smoothing)

    for loss, smoothing in ((found.loss, 0.1), (found.plain_loss, 0.0)):
        expected = ((1 - shares) * losses(first, smoothing) + shares * losses(second, smoothing)).mean()
        torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stem": 4, "causal": True}, "stem reads pixels ahead"),
        ({"grid_position": "forier"}, "did you mean 'fourier'"),
        ({"levels": 300}, "levels must be from 2 to 256"),
        ({"levels": 16}, "expected single pixels for levels=16, got patches of 4 x 4"),
    ],
)
def test_settings_that_do_not_fit_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        model(LongspanImageProcessor(), **settings)


def test_one_stream_alone_is_named() -> None:
    one = model(LongspanImageProcessor())
    with pytest.raises(UserError, match="expected pixel_values and coordinates of images, got one of them"):
        one(pixel_values=torch.zeros(1, 2, 48))
