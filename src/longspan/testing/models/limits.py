"""What models say they cannot do, by model type and name of a check."""

_NO_MASK = "the model warns that it does not use attention_mask"
_GLOBAL = "the first and the last block of a row are global, wherever padding begins"

DOCUMENTED: dict[str, dict[str, str]] = {
    "big_bird": {
        "padding-on-the-right": _GLOBAL,
        "padding-on-the-left": _GLOBAL,
        "training-mode": "blocks are drawn at random in training only",
    },
    "bigbird_pegasus": {
        "padding-on-the-right": _GLOBAL,
        "training-mode": "blocks are drawn at random in training only",
    },
    "reformer": {
        "padding-on-the-right": "padding, too, is sorted into the chunks of LSH attention",
        **dict.fromkeys(("float16", "bfloat16"), "gradients need training mode, and rows that fill their chunks"),
    },
    "rwkv": dict.fromkeys(("padding-on-the-left", "cached-padding", "generation"), _NO_MASK),
    "xlnet": {"future-in-outputs": "attention is bidirectional without perm_mask"},
}
