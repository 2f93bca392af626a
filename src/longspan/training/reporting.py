"""Checking that the programs that a recipe reports to are installed: `check_reporters`."""

from collections.abc import Sequence

from transformers.integrations import get_reporting_integration_callbacks

from longspan.errors import UserError


def check_reporters(names: Sequence[str]) -> None:
    """Raise UserError unless each of `TrainingArguments.report_to` is known and installed, before data are read."""
    try:
        for callback in get_reporting_integration_callbacks(list(names)):
            callback()
    except (RuntimeError, ImportError, ValueError) as error:
        told = str(error).partition(". ")[0].rstrip(".")
        raise UserError(
            f"expected installed reporters in training.report_to={', '.join(names)}, got an error ({told}); install "
            "what "
            "it needs, or leave it out."
        ) from error
