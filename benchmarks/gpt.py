"""A minimal GPT in PyTorch, the peer people would use: fused attention, fused AdamW, a cache.

The same arithmetic as `standard` of the zoo, parameter by parameter: learned positions, LayerNorm
with shifts, GELU in its tanh form, biases, a head tied to the embedding.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Shape(NamedTuple):
    d_model: int
    num_layers: int
    num_heads: int
    context: int
    batch: int = 8
    vocab: int = 256


class Cache(NamedTuple):
    """Keys and values, `batch heads length d_head`, filled from the left."""

    keys: Tensor
    values: Tensor


class Layer(nn.Module):
    def __init__(self, shape: Shape):
        nn.Module.__init__(self)
        d = shape.d_model
        self.num_heads = shape.num_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: Tensor, cache: Cache | None = None, start: int = 0) -> Tensor:
        batch, seq, d = x.shape
        q, k, v = (
            part.view(batch, seq, self.num_heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm_1(x)).split(d, dim=2)
        )
        if cache is not None:
            cache.keys[:, :, start : start + seq] = k
            cache.values[:, :, start : start + seq] = v
            k, v = cache.keys[:, :, : start + seq], cache.values[:, :, : start + seq]
        # One new token may look at all that there is.
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=seq > 1)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, seq, d))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, shape: Shape):
        nn.Module.__init__(self)
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab, shape.d_model)
        self.positions = nn.Embedding(shape.context, shape.d_model)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_layers))
        self.norm = nn.LayerNorm(shape.d_model)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor, caches: list[Cache] | None = None, start: int = 0) -> Tensor:
        seq = tokens.shape[1]
        places = torch.arange(start, start + seq)
        x = self.embedding(tokens) + self.positions(places)
        for index, layer in enumerate(self.layers):
            x = layer(x, None if caches is None else caches[index], start)
        return F.linear(self.norm(x), self.embedding.weight)

    def caches(self, batch: int, length: int) -> list[Cache]:
        heads = self.shape.num_heads
        size = (batch, heads, length, self.shape.d_model // heads)
        return [Cache(torch.zeros(size), torch.zeros(size)) for _ in self.layers]


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Fused, with weight decay on matrices alone."""
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=True)


def trainer(
    model: nn.Module, forward: Callable[[Tensor], Tensor], shape: Shape, steps: int
) -> Callable[[], None]:
    """A call that makes `steps` training steps on windows of random tokens."""
    optim = adamw(model)
    data = torch.randint(0, shape.vocab, (1_000_000,))
    generator = np.random.default_rng(0)
    ahead = torch.arange(shape.context + 1)

    def call() -> None:
        loss = torch.zeros(())
        for _ in range(steps):
            starts = torch.from_numpy(
                generator.integers(0, len(data) - shape.context - 1, shape.batch)
            )
            windows = data[starts[:, None] + ahead]
            logits = forward(windows[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].reshape(-1))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optim.step()
            optim.zero_grad(set_to_none=True)
        # What is reported at the end of a chunk is waited for.
        loss.item()

    return call


def generator(model: GPT, prompt: Tensor, num_tokens: int) -> Callable[[], Tensor]:
    """A call that continues the prompts greedily, with caches."""
    batch, seq = prompt.shape

    @torch.inference_mode()
    def call() -> Tensor:
        caches = model.caches(batch, seq + num_tokens)
        newest = model(prompt, caches)[:, -1].argmax(-1, keepdim=True)
        made = [newest]
        for start in range(seq, seq + num_tokens - 1):
            newest = model(newest, caches, start)[:, -1].argmax(-1, keepdim=True)
            made.append(newest)
        return torch.cat(made, 1)

    return call
