"""States whose last positions can be taken back, as assisted decoding does with candidates that are not accepted."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longspan.errors import UserError
from longspan.models.backbone import Backbone
from longspan.models.states import MixerStates

#: Positions that are rather read again together with the next ones than in a pass of their own.
_FEW = 16
#: Minimum number of positions that can be taken back in all, even those that were kept once.
_BACK = 32


class Piece(NamedTuple):
    """Some positions: each layer's state before them, x (b, n, dim) as it entered the backbone, and their mask."""

    layers: tuple[Any, ...]
    x: Tensor
    mask: Tensor | None

    @property
    def positions(self) -> int:
        """How many there are."""
        return self.x.shape[1]

    def split(self, position: int) -> list["Piece"]:
        """Return those before `position` and the others, which have no states yet."""
        masks = [None, None] if self.mask is None else [self.mask[:, :position], self.mask[:, position:]]
        # Copies, as a few positions would keep those of a whole prompt in memory.
        parts = [self.x[:, :position].clone(), self.x[:, position:].clone()]
        return [Piece(self.layers, parts[0], masks[0]), Piece((), parts[1], masks[1])]

    def with_(self, x: Tensor, mask: Tensor | None) -> "Piece":
        """Return these and more positions."""
        joined = None
        if mask is not None or self.mask is not None:
            joined = torch.cat((_spelled_out(self.x, self.mask), _spelled_out(x, mask)), 1)
        return Piece(self.layers, torch.cat((self.x, x), 1), joined)


class RewindableStates(MixerStates):
    """States that remember the last positions and the states before them, so that `crop` can take positions back.

    A state of constant size holds nothing that could be cut off. After a crop, the remaining positions of the cropped
    piece are therefore read again from the state before it, together with the next ones. A step still takes one pass.
    That serves every mixer, for the memory of up to three earlier states and a few vectors.
    """

    # None while the last piece, which a crop has shortened, is to be read again.
    _layers: tuple[Any, ...] | None

    def __init__(self, states: MixerStates, backbone: Backbone, pieces: Sequence[Piece] = ()) -> None:
        super().__init__(
            states.layers, states.seen, states.length, states._blocks, states.recent, states.history, states.context
        )
        self._backbone = backbone
        self._pieces = tuple(pieces)

    @property
    def layers(self) -> tuple[Any, ...]:
        """The state of each layer."""
        if self._layers is None:
            piece = self._pieces[-1]
            with torch.no_grad():
                _, self._layers = self._backbone.step(piece.x, piece.layers, piece.mask)
        return self._layers

    @layers.setter
    def layers(self, layers: tuple[Any, ...]) -> None:
        self._layers = layers

    def step(
        self,
        backbone: Backbone,
        x: Tensor,
        mask: Tensor | None,
        hidden_states: list[Tensor] | None = None,
        ids: Tensor | None = None,
    ) -> tuple[Tensor, MixerStates]:
        new = x.shape[1]
        if self._layers is None and self._pieces[-1].positions <= _FEW:
            *pieces, last = self._pieces
            todo = [last.with_(x, mask)]
        else:
            layers = self.layers
            pieces, todo = list(self._pieces), [Piece(layers, x, mask)]
        if not pieces and new > 2 * _BACK:
            # Of a prompt, only the end is read again, where candidates are.
            todo = todo[0].split(todo[0].positions - _BACK)
        outputs, layers = [], todo[0].layers
        collected: list[list[Tensor]] = []
        for piece in todo:
            pieces.append(piece._replace(layers=layers))
            collected.append([])
            y, layers = backbone.step(piece.x, layers, piece.mask, collected[-1])
            outputs.append(y)
        if hidden_states is not None:
            hidden_states += [torch.cat(parts, 1)[:, -new:] for parts in zip(*collected, strict=True)]
        after = self.after(layers, _spelled_out(x, mask).sum(1), new, ids)
        if self.recent is not None and ids is not None:
            # All of them, as a crop takes back the last ones.
            after.recent = torch.cat((self.recent, ids), 1)
        return torch.cat(outputs, 1)[:, -new:], RewindableStates(after, backbone, pieces)

    def lengthened(self, history: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> dict[str, Tensor]:
        # All of them, likewise.
        return {name: torch.cat((history[name], tensor), 1) for name, tensor in new.items()}

    def activate_past_recording(self) -> None:
        """Do nothing: transformers asks for what these states always do."""

    def crop(self, positions: int) -> None:
        """Take back the last `-positions` positions; transformers counts what its caches are to remove below 0.

        Raises:
            UserError: for more positions than are remembered.
        """
        remove = -positions
        pieces = list(self._pieces)
        known = sum(piece.positions for piece in pieces)
        if not 0 <= remove <= known:
            raise UserError(
                f"expected to take back at most the {known} positions that these states remember, got {remove}; start "
                "again from the prompt."
            )
        self.length -= remove
        self.recent = None if self.recent is None else self.recent[:, : self.recent.shape[1] - remove]
        self.history = {name: tensor[:, : tensor.shape[1] - remove] for name, tensor in self.history.items()}
        while remove:
            piece = pieces.pop()
            left, gone = piece.split(max(0, piece.positions - remove))
            self.seen = self.seen - _spelled_out(gone.x, gone.mask).sum(1)
            remove -= gone.positions
            self._layers = None if left.positions else piece.layers
            pieces += [left] if left.positions else []
        read = len(pieces) if self._layers is not None else len(pieces) - 1
        self._pieces = (*_thinned(pieces[:read]), *pieces[read:])

    def _become(self, other: MixerStates) -> None:
        super()._become(other)
        # They are of other rows now.
        self._pieces = ()


def _thinned(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Return what is needed to take back _BACK positions, with few earlier states."""
    kept: list[Piece] = []
    for piece in reversed(pieces):
        if sum(later.positions for later in kept) >= _BACK:
            break
        if kept and kept[-1].positions + piece.positions <= _BACK:
            kept[-1] = piece.with_(kept[-1].x, kept[-1].mask)
        else:
            kept.append(piece)
    return tuple(reversed(kept))


def _spelled_out(x: Tensor, mask: Tensor | None) -> Tensor:
    return torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
