"""Peak memory of an encoder-decoder model with a long source: one step of training, or a target that is generated.

    python benchmarks/source_memory.py train [--source 25000] [--target 128] [--cross softmax] [--copy]
    python benchmarks/source_memory.py generate --source 250000 --target 100

The number is the most resident memory the process ever had, Python and PyTorch included. Of generated tokens, it also
says what the last ones take of the processor for each of the first: 1 where the cost of a token is constant.
"""

import argparse
import statistics
import time
from typing import Any

import torch
from transformers.generation.streamers import BaseStreamer

from longspan import LongspanForSeq2SeqLM
from longspan.cli import use_fastest_exact_products
from longspan.machine.memory import peak_memory

START = 1


class Clock(BaseStreamer):
    """Notes when each token comes, in seconds of the processor."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        self.times.append(time.process_time())

    def end(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("work", choices=["train", "generate"])
    parser.add_argument("--source", type=int, default=25_000, help="tokens of the source")
    parser.add_argument("--target", type=int, default=128, help="tokens of the target")
    parser.add_argument("--mixer", default="additive", help="of encoder and decoder")
    parser.add_argument("--cross", default="softmax", help="cross attention")
    parser.add_argument("--copy", action="store_true", help="with a pointer to tokens of the source")
    parser.add_argument("--beams", type=int, default=1)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--checkpointing", action="store_true", help="recompute activations in the backward pass")
    arguments = parser.parse_args()
    use_fastest_exact_products()
    torch.manual_seed(0)
    config = LongspanForSeq2SeqLM.configured(
        vocab_size=8000,
        dim=arguments.dim,
        depth=3,
        heads=8,
        mixers=[arguments.mixer],
        cross_attention=[arguments.cross],
        copy=arguments.copy,
        dropout=0.1,
        label_smoothing=0.1,
        decoder_start_token_id=START,
    )
    model = LongspanForSeq2SeqLM(config)
    source = torch.randint(3, config.vocab_size, (1, arguments.source))
    before, told = peak_memory(), ""
    if arguments.work == "train":
        if arguments.checkpointing:
            model.gradient_checkpointing_enable()
        optimizer = torch.optim.AdamW(model.parameters())
        labels = torch.randint(3, config.vocab_size, (1, arguments.target))
        model(source, torch.ones_like(source), labels=labels).loss.backward()
        optimizer.step()
    else:
        clock = Clock() if arguments.beams == 1 else None
        model.eval().generate(
            source,
            attention_mask=torch.ones_like(source),
            max_new_tokens=arguments.target,
            min_new_tokens=arguments.target,
            num_beams=arguments.beams,
            streamer=clock,
        )
        if clock is not None:
            steps = [later - earlier for earlier, later in zip(clock.times[1:], clock.times[2:], strict=False)]
            fifth = max(1, len(steps) // 5)
            growth = statistics.median(steps[-fifth:]) / statistics.median(steps[:fifth])
            told = f", last tokens {growth:.2f} times the first"
    copying = ", copying" if arguments.copy else ""
    print(
        f"{arguments.work}, {arguments.mixer}, {arguments.cross}{copying}, {arguments.source:,} + {arguments.target:,} "
        f"tokens: peak {peak_memory() / 2**30:.2f} GiB, of which {before / 2**30:.2f} GiB before{told}"
    )


if __name__ == "__main__":
    main()
