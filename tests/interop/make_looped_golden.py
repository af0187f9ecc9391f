"""Make golden files of looped models by running their authors' code on random weights.

    python tests/interop/make_looped_golden.py NAME CHECKOUT

    huginn      seal-rg/recurrent-pretraining
    loopformer  armenjeddi/loopformer
    ouro        modeling_ouro.py of ByteDance/Ouro-1.4B; run as copied in Eagle4398/ouro-nixpkgs
    parcae      sandyresearch/parcae

It needs the peers. CHECKOUT is a directory of that code, of which nothing is kept here.
"""

import argparse
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
import transformers
from hf_cases import GOLDEN
from looped_cases import DEPTHS, OPTIONS, SEQ, VOCAB, blank, filled
from safetensors.numpy import save_file

from qkvflow.runs.weights import named_arrays

Arrays = dict[str, np.ndarray]


def random_arrays(model: Any, seed: int) -> Arrays:
    """Every array at random, by its name; none is 0 or 1 by initialisation."""
    rng, found = np.random.default_rng(seed), {}
    for name, like in sorted(named_arrays(model).items()):
        drawn = rng.standard_normal(like.shape)
        if name.endswith("scale"):
            drawn = 1.0 + 0.3 * drawn
        elif name.endswith(".weight") or name == "head":
            drawn *= like.shape[-2] ** -0.5
        else:
            drawn *= 0.5
        found[name] = drawn.astype(np.float32)
    return found


def module(package: str, folder: Path, name: str) -> Any:
    """A module of a folder, without what the folder's own package imports first."""
    found = ModuleType(package)
    found.__path__ = [str(folder)]
    sys.modules[package] = found
    return importlib.import_module(f"{package}.{name}")


def take_in(model: Any, weights: Arrays) -> None:
    """Every parameter is given, and only those."""
    given = {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in weights.items()}
    wanted = dict(model.named_parameters(remove_duplicate=False))
    assert given.keys() == wanted.keys(), given.keys() ^ wanted.keys()
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(given[name])
    model.eval()


def layer(arrays: Arrays, prefix: str, first: int = 0, index: int | None = None) -> Any:
    """`get(0, "mixer.qkv.weight")` of one layer: branches from `first` on, in a stack `index`."""

    def get(branch: int, name: str) -> np.ndarray:
        found = arrays[f"{prefix}.branches.{first + branch}.{name}"]
        return found if index is None else found[index]

    return get


def layers(arrays: Arrays, model: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """Of prelude, core and coda."""
    ends = [
        [
            layer(arrays, f"{end}.0.field.layers.block", index=i)
            for i in range(sum(each.num_steps for each in getattr(model, end)))
        ]
        for end in ("prelude", "coda")
    ]
    per_loop = len(model.field.block.branches) // 2
    core = [layer(arrays, "field.block", 2 * i) for i in range(per_loop)]
    return ends[0], core, ends[1]


def paired(x: np.ndarray, heads: int) -> np.ndarray:
    """Channels of rotated heads, the last axis, from halves to pairs beside one another."""
    halves = x.reshape(*x.shape[:-1], heads, 2, -1)
    return np.swapaxes(halves, -1, -2).reshape(x.shape)


def huginn(checkout: Path, arrays: Arrays, model: Any, tokens: np.ndarray) -> Arrays:
    code = module("recpre", checkout / "recpre", "raven_modeling_minimal")
    prelude, core, coda = layers(arrays, model)
    heads, width = OPTIONS["huginn"]["num_heads"], model.d_model
    for name in arrays:  # What theirs does not have: biases of values, a norm of its own.
        if name.endswith("qkv.bias"):
            arrays[name][..., 2 * width :] = 0.0
    arrays["coda.0.norm.scale"] = arrays["norm.block.scale"]
    config = code.RavenConfig(
        n_embd=width,
        n_heads=heads,
        vocab_size=VOCAB,
        block_size=16,
        intermediate_size=40,
        tie_embeddings=False,
        n_layers_in_prelude=len(prelude),
        n_layers_in_recurrent_block=len(core),
        n_layers_in_coda=len(coda),
    )
    theirs = code.RavenForCausalLM(config).float()
    weights = {
        "transformer.wte.weight": arrays["embedding"],
        "lm_head.weight": arrays["embedding"],
        "transformer.ln_f.weight": arrays["norm.block.scale"],
        "transformer.adapter.weight": np.concatenate(
            [arrays["injection.of_state.weight"], arrays["injection.of_input.weight"]]
        ).T,
    }
    for where, stack in (("prelude", prelude), ("core_block", core), ("coda", coda)):
        for i, get in enumerate(stack):
            qkv, bias = get(0, "mixer.qkv.weight"), get(0, "mixer.qkv.bias")
            q, k, v = np.split(qkv, 3, axis=1)
            both = [paired(each, heads) for each in np.split(bias, 3)[:2]]
            weights |= {
                f"transformer.{where}.{i}.{name}": each
                for name, each in {
                    "norm_1.weight": get(0, "norm.scale"),
                    "norm_2.weight": get(0, "outer.scale"),
                    "norm_3.weight": get(1, "norm.scale"),
                    "norm_4.weight": get(1, "outer.scale"),
                    "attn.Wqkv.weight": np.concatenate(
                        [paired(q, heads), paired(k, heads), v], axis=1
                    ).T,
                    "attn.qk_bias": np.stack(both).reshape(2, 1, heads, -1),
                    "attn.proj.weight": get(0, "mixer.out.weight").T,
                    "mlp.fc.weight": np.concatenate(
                        [get(1, "mixer.gate.weight"), get(1, "mixer.up.weight")], axis=1
                    ).T,
                    "mlp.proj.weight": get(1, "mixer.down.weight").T,
                }.items()
            }
    take_in(theirs, weights)
    state = np.array(filled(model, arrays).trajectory(jnp.asarray(tokens))[0])
    given = {"input_ids": torch.from_numpy(tokens).long(), "input_states": torch.from_numpy(state)}
    found = [theirs(**given, num_steps=depth).logits.numpy() for depth in DEPTHS["huginn"]]
    return {"logits": np.stack(found), "state": state}


def parcae(checkout: Path, arrays: Arrays, model: Any, tokens: np.ndarray) -> Arrays:
    """With their options and weights where they say what the entry does: a diagonal B, the identity
    for C, no value embeddings, SwiGLU, no norm after the prelude or on queries and keys."""
    sys.path.insert(0, str(checkout))
    code = importlib.import_module("parcae_lm.models.parcae.config")
    rope = importlib.import_module("parcae_lm.models.config").RoPESettings
    prelude, core, coda = layers(arrays, model)
    heads, width = OPTIONS["parcae"]["num_heads"], model.d_model
    theirs = code.ParcaeConfig(
        n_embd=width,
        recurrent_embedding_dimension=width,
        intermediate_size=40,
        recurrent_intermediation_embedding_dimension=40,
        num_attention_heads=heads,
        vocab_size=VOCAB,
        padded_vocab_size=VOCAB,
        block_size=16,
        rope_settings=rope(rope_base=OPTIONS["parcae"]["rotary_base"]),
        norm_class_name="RMSNorm",
        norm_eps=1e-6,
        mlp_class_name="GatedMLP",
        nonlin_name="SiLU",
        tie_embeddings=True,
        n_layers_in_prelude=len(prelude),
        n_layers_in_recurrent_block=len(core),
        n_layers_in_coda=len(coda),
    ).construct_model()
    theirs.value_embeds = torch.nn.ModuleDict()
    recurrence = "injection.recurrence"
    delta = np.exp(arrays[f"{recurrence}.log_delta"])
    weights = {
        "transformer.wte.weight": arrays["embedding"],
        "lm_head.weight": arrays["embedding"],
        "transformer.ln_f.weight": arrays["norm.block.scale"],
        "transformer.adapter.A_log": arrays[f"{recurrence}.log_a"],
        "transformer.adapter.dt_bias": np.log(np.expm1(delta)),
        "transformer.adapter.B": np.diag(arrays[f"{recurrence}.b"]),
        "transformer.C.weight": np.eye(width, dtype=np.float32),
    }
    for where, stack in (("prelude", prelude), ("core_block", core), ("coda", coda)):
        for i, get in enumerate(stack):
            getattr(theirs.transformer, where)[i].attn.ve_gate = None
            q, k, v = np.split(get(0, "mixer.qkv.weight"), 3, axis=1)
            weights |= {
                f"transformer.{where}.{i}.{name}": each
                for name, each in {
                    "norm_1.weight": get(0, "norm.scale"),
                    "norm_2.weight": get(1, "norm.scale"),
                    "attn.c_q.weight": paired(q, heads).T,
                    "attn.c_k.weight": paired(k, heads).T,
                    "attn.c_v.weight": v.T,
                    "attn.c_proj.weight": get(0, "mixer.out.weight").T,
                    "mlp.fc.weight": np.concatenate(
                        [get(1, "mixer.gate.weight"), get(1, "mixer.up.weight")], axis=1
                    ).T,
                    "mlp.proj.weight": get(1, "mixer.down.weight").T,
                }.items()
            }
    take_in(theirs, weights)
    state = np.array(filled(model, arrays).trajectory(jnp.asarray(tokens))[0])
    theirs.initialize_state = lambda embedded: torch.from_numpy(state)
    ids = torch.from_numpy(tokens).long()
    found = []
    for depth in DEPTHS["parcae"]:
        loops = torch.tensor([depth, 0])
        found.append(theirs(ids, return_logits=True, num_steps_pair=loops)["logits"].numpy())
    return {"logits": np.stack(found), "state": state}


def ouro(checkout: Path, arrays: Arrays, model: Any, tokens: np.ndarray) -> Arrays:
    options, (_, core, _) = OPTIONS["ouro"], layers(arrays, model)
    configuration: Any = ModuleType("ouro.configuration_ouro")
    make_config: Any = type("OuroConfig", (transformers.PretrainedConfig,), {})
    configuration.OuroConfig = make_config
    sys.modules["ouro.configuration_ouro"] = configuration
    code = module("ouro", checkout, "modeling_ouro")
    # The kind `default` is gone from transformers; scaled by 1 the frequencies are the same.
    rope = {"rope_type": "linear", "factor": 1.0, "rope_theta": options["rotary_base"]}
    config = make_config(
        hidden_size=model.d_model,
        intermediate_size=40,
        num_attention_heads=options["num_heads"],
        num_key_value_heads=options["num_heads"],
        head_dim=model.d_model // options["num_heads"],
        num_hidden_layers=len(core),
        total_ut_steps=model.num_steps,
        vocab_size=VOCAB,
        max_position_embeddings=16,
        rms_norm_eps=1e-6,
        hidden_act="silu",
        attention_dropout=0.0,
        sliding_window=None,
        layer_types=["full_attention"] * len(core),
        rope_scaling=rope,
        rope_parameters=rope,
        tie_word_embeddings=False,
        use_cache=False,
        pad_token_id=None,
    )
    config._attn_implementation = "eager"
    theirs = code.OuroForCausalLM(config).float()
    last = f"field.block.branches.{2 * len(core) - 1}.outer.scale"
    weights = {
        "model.embed_tokens.weight": arrays["embedding"],
        "lm_head.weight": arrays["head"].T,
        "model.norm.weight": arrays[last],
        "model.early_exit_gate.weight": arrays["exit_gate.weight"].T,
        "model.early_exit_gate.bias": arrays["exit_gate.bias"],
    }
    for i, get in enumerate(core):
        q, k, v = np.split(get(0, "mixer.qkv.weight"), 3, axis=1)
        weights |= {
            f"model.layers.{i}.{name}.weight": each
            for name, each in {
                "input_layernorm": get(0, "norm.scale"),
                "input_layernorm_2": get(0, "after.scale"),
                "post_attention_layernorm": get(1, "norm.scale"),
                "post_attention_layernorm_2": get(1, "after.scale"),
                "self_attn.q_proj": q.T,
                "self_attn.k_proj": k.T,
                "self_attn.v_proj": v.T,
                "self_attn.o_proj": get(0, "mixer.out.weight").T,
                "mlp.gate_proj": get(1, "mixer.gate.weight").T,
                "mlp.up_proj": get(1, "mixer.up.weight").T,
                "mlp.down_proj": get(1, "mixer.down.weight").T,
            }.items()
        }
    take_in(theirs, weights)
    mask = torch.full((SEQ, SEQ), -torch.inf).triu(1)[None, None]
    given = {
        "input_ids": torch.from_numpy(tokens).long(),
        "attention_mask": {"full_attention": mask},
        "use_cache": False,
    }
    found = [theirs(**given, exit_at_step=depth - 1).logits.numpy() for depth in DEPTHS["ouro"]]
    weighted = theirs(**given, use_weighted_exit=True).logits.numpy()
    return {"logits": np.stack(found), "weighted": weighted}


def loopformer(checkout: Path, arrays: Arrays, model: Any, tokens: np.ndarray) -> Arrays:
    """Two embeddings of half the width, of t and of dt, stand side by side in our one; what our
    features make of them at each of the depths is fitted to what theirs do."""
    code = module("models", checkout / "models", "loopformer")
    (_, core, _), width = layers(arrays, model), model.d_model
    steps = model.num_steps
    theirs = code.GPT(
        code.GPTConfig(
            block_size=OPTIONS["loopformer"]["context"],
            vocab_size=VOCAB,
            n_layer=len(core),
            n_head=OPTIONS["loopformer"]["num_heads"],
            n_embd=width,
            intermediate_dim=40,
        )
    )
    rng = np.random.default_rng(3)
    weights: Arrays = {
        "transformer.wte.weight": arrays["embedding"],
        "lm_head.weight": arrays["embedding"],
        "transformer.wpe.weight": arrays["positions"],
        "transformer.norm_f.weight": arrays["norm.block.scale"],
    }
    hidden = []
    first, second = arrays["field.embedding.first.weight"], arrays["field.embedding.second.weight"]
    first_bias = arrays["field.embedding.first.bias"]
    second_bias = arrays["field.embedding.second.bias"]
    second[:, width:] = second_bias[width:] = 0.0
    grid = np.arange(steps) / steps
    for i, (name, times) in enumerate((("time", grid), ("dt", np.full(steps, 1 / steps)))):
        mine = slice(i * width, (i + 1) * width)
        embedder = getattr(theirs, f"{name}_embedder")
        size = embedder.frequency_embedding_size
        features = embedder.timestep_embedding(torch.tensor(times), size).double().numpy()
        weight = (rng.standard_normal((width, size)) * 4.0 * size**-0.5).astype(np.float32)
        hidden.append(features @ weight.T)
        weights |= {
            f"{name}_embedder.mlp.0.weight": weight,
            f"{name}_embedder.mlp.0.bias": first_bias[mine],
            f"{name}_embedder.mlp.2.weight": second[mine, :width].T,
            f"{name}_embedder.mlp.2.bias": second_bias[:width] / 2,
        }
    ours: Any = model.field
    told = np.asarray(ours.features(jnp.asarray(grid + 1 / steps, jnp.float32)), np.float64)
    fitted = np.linalg.lstsq(told, np.concatenate(hidden, axis=1), rcond=None)[0]
    first[...] = fitted
    for i, get in enumerate(core):
        # Of every branch a scale of the norm and one of its output: theirs are gates first.
        maps = [arrays[f"field.maps.linears.{4 * i + j}.weight"] for j in (1, 3, 0, 2)]
        places = ((0, "after"), (1, "after"), (0, "norm"), (1, "norm"))
        begins = [get(branch, f"{place}.scale") for branch, place in places]
        begins[2:] = [each - 1.0 for each in begins[2:]]
        weights |= {
            f"transformer.h.blocks.{i}.{name}": each
            for name, each in {
                "attn.c_attn.weight": get(0, "mixer.qkv.weight").T,
                "attn.c_proj.weight": get(0, "mixer.out.weight").T,
                "mlp.c_fc.weight": get(1, "mixer.up.weight").T,
                "mlp.c_proj.weight": get(1, "mixer.down.weight").T,
                "adaLN_modulation.1.weight": np.concatenate([m[:width] for m in maps], axis=1).T,
                "adaLN_modulation.1.bias": np.concatenate(begins),
            }.items()
        }
    take_in(theirs, weights)
    ids = torch.from_numpy(tokens).long()
    logits = theirs(ids, targets=torch.zeros_like(ids), steps=[1 / steps] * steps)[0]
    return {"logits": logits.numpy()[None]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=sorted(OPTIONS))
    parser.add_argument("checkout", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    settings = {"entry": given.name, "depths": DEPTHS[given.name], **OPTIONS[given.name]}
    model = blank(settings)
    arrays = random_arrays(model, sorted(OPTIONS).index(given.name))
    tokens = np.random.default_rng(7).integers(0, VOCAB, (2, SEQ)).astype(np.int32)
    run = {"huginn": huginn, "loopformer": loopformer, "ouro": ouro, "parcae": parcae}[given.name]
    with torch.no_grad():
        found = run(given.checkout.resolve(), arrays, model, tokens)
    content = {name: np.ascontiguousarray(each) for name, each in (arrays | found).items()}
    path = GOLDEN / f"looped-{given.name}.safetensors"
    save_file(content | {"tokens": tokens}, path, metadata={"settings": json.dumps(settings)})
    print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
