"""The model card of an export: what it is, what it was trained on, how good it is, how to use."""

from typing import Any

from qkvflow.lm import count_parameters
from qkvflow.lm.accounting import weights_in_effect
from qkvflow.runs.load import Trained
from qkvflow.runs.sections import PRETRAINED

_TRANSFORMERS = ["library_name: transformers", "pipeline_tag: text-generation"]
_USE = """```python
import qkvflow

trained = qkvflow.load("PATH")
tokens = trained.tokenizer.encode("some text")
logits = trained.model(tokens[None].astype(int))
```""".splitlines()
_USE_TRANSFORMERS = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("PATH")
tokenizer = AutoTokenizer.from_pretrained("PATH")
made = model.generate(**tokenizer("some text", return_tensors="pt"), max_new_tokens=50)
print(tokenizer.decode(made[0]))
```""".splitlines()


def model_card(
    trained: Trained, record: dict[str, Any] | None, model_type: str | None = None
) -> str:
    """`model_type` is that of `transformers`, if it is written for that."""
    choice, params = trained.config.model, count_parameters(trained.model)
    config, applied = choice.config, weights_in_effect(trained.model)
    lines = [
        "---",
        *(_TRANSFORMERS if model_type else ["library_name: qkvflow"]),
        "tags: [language-model, jax, depth-continuous]",
        "---",
        f"# {choice.name} ({params.total:,} parameters)",
        "",
        f"A language model with field `{config.field}`, block `{config.block}` and "
        f"scheme `{config.scheme}`: {config.num_steps} steps along depth, width "
        f"{config.d_model}, context {config.context}.",
        "",
        f"It stores {params.total:,} parameters, {params.blocks:,} of them for its blocks; in "
        f"effect its steps apply {applied:,} block weights."
        + (f" Here those are written out, as `{model_type}`." if model_type else ""),
        "",
        "## Use",
        *(_USE_TRANSFORMERS if model_type else _USE),
        "",
        *(_imported(trained) if trained.config.data.spec == PRETRAINED else _training(trained)),
    ]
    if record is not None and trained.step in (None, record["losses"]["selected_step"]):
        lines += _results(record)
    lines += [
        "",
        "## Limits",
        "It continues text like that it was trained on. It has been given no instructions and no "
        "safety training; do not rely on what it says.",
        "",
    ]
    return "\n".join(lines)


def _imported(trained: Trained) -> list[str]:
    return [
        "## Origin",
        f"Imported from `{trained.config.track.label}`; its own card says what it was trained on "
        "and under which licence it may be used.",
    ]


def _training(trained: Trained) -> list[str]:
    config, train, optim = trained.config, trained.config.train, trained.config.optim
    return [
        "## Training",
        f"- text: `{config.data.spec}`, tokenizer `{trained.tokenizer.name}` "
        f"(vocabulary {trained.tokenizer.vocab_size})",
        f"- {train.steps:,} steps of {config.tokens_per_step:,} tokens, seed {train.seed}; these "
        f"weights are of step {trained.step}",
        f"- {optim.name}, learning rate {optim.lr} ({optim.schedule}), weight decay "
        f"{optim.weight_decay}, clipping {optim.max_grad_norm}",
    ]


def _results(record: dict[str, Any]) -> list[str]:
    lines = [f"- text sha256 `{record['data']['sha256']}`", "", "## Results"]
    lines += ["| split | nats per token | bits per byte | perplexity |", "|---|---|---|---|"]
    for split in ("validation", "test"):
        if (each := record["losses"][split]) is not None:
            lines.append(
                f"| {split} | {each['nats']:.4f} ± {each['standard_error'] or 0.0:.4f} | "
                f"{each['bits_per_byte']:.4f} | {each['perplexity']:.2f} |"
            )
    return lines
