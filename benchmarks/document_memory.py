"""Peak memory of one forward and backward pass over a single document, at the shape of Wu et al. 2021.

    python benchmarks/document_memory.py [--tokens 65536] [--mixer additive] [--checkpointing]

The number is the most resident memory the process ever had, Python and PyTorch included.
"""

import argparse
import time

import torch

from longspan import LongspanConfig, LongspanForSequenceClassification
from longspan.cli import use_fastest_exact_products
from longspan.machine.memory import peak_memory


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--mixer", default="additive")
    parser.add_argument("--checkpointing", action="store_true", help="recompute activations in the backward pass")
    arguments = parser.parse_args()
    use_fastest_exact_products()
    before = peak_memory()
    model = LongspanForSequenceClassification(
        LongspanConfig(mixers=[arguments.mixer], feed_forward_dim=256, dropout=0.2, token_dropout=0.1, position="none")
    )
    if arguments.checkpointing:
        # The older name is deprecated where there is the newer one, of transformers 5.23.
        getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    ids = torch.randint(2, 16000, (1, arguments.tokens))
    start = time.perf_counter()
    model(ids, torch.ones_like(ids), labels=torch.tensor([0])).loss.backward()
    print(
        f"{arguments.mixer}, {arguments.tokens:,} tokens: {time.perf_counter() - start:.1f} s, peak "
        f"{peak_memory() / 2**30:.2f} GiB, of which {before / 2**30:.2f} GiB before the model was built"
    )


if __name__ == "__main__":
    main()
