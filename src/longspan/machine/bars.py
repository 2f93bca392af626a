"""Progress bars of other libraries, hidden for a while: `hidden_bars`."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def hidden_bars(*, all_of_them: bool = False) -> Iterator[None]:
    """Hide transformers' bars of loading and saving during the `with` block; or also those of reading and scoring.

    The latter are those of `datasets`, which `datasets.disable_progress_bars` hides for good.
    """
    import datasets
    from huggingface_hub.utils import are_progress_bars_disabled, enable_progress_bars
    from transformers.utils import logging

    saving, reading = logging.is_progress_bar_enabled(), datasets.is_progress_bar_enabled()
    downloading = not are_progress_bars_disabled()
    logging.disable_progress_bar()
    # Downloads take long.
    if downloading and not all_of_them:
        enable_progress_bars()
    if all_of_them:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        if saving:
            logging.enable_progress_bar()
        if downloading:
            enable_progress_bars()
        if reading:
            datasets.enable_progress_bars()
