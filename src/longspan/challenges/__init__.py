"""The Long Range Arena: its tasks as files to train on, generated or converted by our own code.

Source: Tay et al. 2021 (https://arxiv.org/abs/2011.04006). Each module says where its data deviate from those of the
paper. Importing this package loads nothing heavy.
"""

from collections.abc import Mapping

from longspan.challenges.base import Challenge
from longspan.challenges.images import Images
from longspan.challenges.listops import ListOps
from longspan.challenges.pathfinder import Pathfinder
from longspan.challenges.retrieval import Retrieval
from longspan.challenges.texts import Texts

__all__ = ["CHALLENGES", "Challenge"]

CHALLENGES: Mapping[str, Challenge] = {
    each.name: each for each in (ListOps(), Texts(), Retrieval(), Images(), Pathfinder())
}
"""The tasks by name, in the order of the paper."""
