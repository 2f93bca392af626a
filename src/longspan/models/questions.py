"""Models that read a question with a document: by cross attention in every layer, or before the document."""

from longspan import mixers
from longspan.errors import UserError
from longspan.models.config import LongspanConfig

#: Ways to read a question, `question` in the settings of heads.
QUESTIONS = ("context", "front")


def settle_question(config: LongspanConfig) -> None:
    """Set `cross_mixers` as `question` asks: with "context" and None, to those of `mixers` that have cross attention.

    Heads that read questions call it before they build a model.

    Raises:
        UserError: No mixer has cross attention, or there are cross mixers for a question in front.
    """
    if config.head.question == "front":
        if config.cross_mixers:
            raise UserError(
                "cross_mixers are for question='context', got "
                f"{config.cross_mixers} with question='front'; leave one of them out."
            )
        return
    if config.cross_mixers:
        return
    assert config.mixers is not None
    config.cross_mixers = [name for name in config.mixers if mixers.load(name).capabilities.context]
    if not config.cross_mixers:
        raise UserError(
            f"expected a mixer with cross attention to read questions, got {', '.join(config.mixers)}; set "
            "model.cross_mixers=['linear'] in addition, or model.question=\"front\"."
        )
