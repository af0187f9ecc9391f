"""Make golden checkpoints that are not there: python tests/interop/make_golden.py (needs the
peers)."""

import json

from hf_cases import CASES, GOLDEN, KEPT, random_tokens
from hf_peers import logits_of, random_model, tensors_of
from safetensors.numpy import save_file


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for name in KEPT:
        if (GOLDEN / f"{name}.safetensors").exists():
            continue
        seed = KEPT.index(name)
        model = random_model(CASES[name], seed)
        tokens = random_tokens(seed, 11)
        arrays = tensors_of(model)
        if model.config.tie_word_embeddings:
            arrays.pop("lm_head.weight")
        arrays |= {"tokens": tokens, "logits": logits_of(model, tokens)}
        metadata = {"settings": json.dumps(CASES[name])}
        save_file(arrays, GOLDEN / f"{name}.safetensors", metadata=metadata)


if __name__ == "__main__":
    main()
