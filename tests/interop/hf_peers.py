"""The live side of the comparison; importing it needs PyTorch and transformers."""

from typing import Any

import numpy as np
import torch
import transformers

# The tensors are tiny: threads would only wait for one another.
torch.set_num_threads(1)


def random_model(settings: dict[str, Any], seed: int) -> Any:
    """A model of `transformers` with every parameter at random: biases and norms as well."""
    config = transformers.AutoConfig.for_model(**settings)
    config.bos_token_id = config.eos_token_id = config.pad_token_id = None
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            size = 0.3 if parameter.ndim == 1 else 1.5 * parameter.shape[-1] ** -0.5
            parameter.add_(size * torch.randn_like(parameter))
    return model.eval()


def logits_of(model: Any, tokens: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(tokens, dtype=torch.long), use_cache=False).logits.numpy()


def tensors_of(model: Any) -> dict[str, np.ndarray]:
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}
