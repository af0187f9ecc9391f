"""Registries: members by name, in files of their own, and what is refused."""

import subprocess
import sys

import pytest

from qkvflow.errors import UserError
from qkvflow.zoo.registry import FIELDS, INJECTIONS, MIXERS, OPTIMISERS, SCHEMES, Registry

REGISTRIES = {each.kind: each for each in (FIELDS, MIXERS, INJECTIONS, SCHEMES, OPTIMISERS)}

NAMES = {
    "field": "basis cycle gated gated-generated hypernet low-rank modulated per-layer "
    "per-layer-hypernet shared universal",
    "mixer": "attention mlp selective-ssm ssm swiglu",
    "injection": "add concat diagonal none skip",
    "scheme": "adaptive euler fixed-point heun midpoint residual rk4 strang",
    "optimiser": "adamw lion muon schedule-free sgd",
}


@pytest.mark.parametrize("kind", REGISTRIES)
def test_every_file_registers_its_name_and_no_other(kind: str):
    registry = REGISTRIES[kind]
    files = list(registry)
    assert files == NAMES[kind].split()
    for name in files:
        module = sys.modules[registry[name].__module__]
        assert module.__name__.rpartition(".")[2] == name.replace("-", "_")
    # Importing them all has added nothing else.
    assert list(registry) == files
    assert len(registry) == len(files)


def test_names_are_known_without_jax():
    program = (
        "import sys\n"
        "from qkvflow.zoo.registry import FIELDS, INJECTIONS, MIXERS, OPTIMISERS, SCHEMES\n"
        "from qkvflow.zoo import ModelConfig, names\n"
        "ModelConfig(field='gated', block='attention+swiglu', scheme='rk4')\n"
        "for each in (FIELDS, MIXERS, INJECTIONS, SCHEMES, OPTIMISERS):\n"
        "    print(each.kind, *each)\n"
        "assert names()\n"
        "assert not {'jax', 'equinox', 'numpy'} & {*sys.modules}\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [f"{kind} {names}" for kind, names in NAMES.items()]


@pytest.mark.parametrize("kind", REGISTRIES)
def test_names_are_taken_once(kind: str):
    registry = REGISTRIES[kind]
    for name in registry:
        with pytest.raises(UserError, match=f"there is a {kind} '{name}' already"):
            registry.register(name)(lambda: None)
    registry.register("of-my-own")(len)
    try:
        assert registry["of-my-own"] is len
        assert "of-my-own" in list(registry)
        with pytest.raises(UserError, match=f"there is a {kind} 'of-my-own' already"):
            registry.register("of-my-own")(len)
    finally:
        registry.unregister("of-my-own")
    assert "of-my-own" not in registry


def test_a_name_is_taken_before_its_file_is_imported():
    fresh = Registry("scheme", "schemes")
    with pytest.raises(UserError, match="there is a scheme 'rk4' already"):
        fresh.register("rk4")(lambda: None)


@pytest.mark.parametrize(
    ("kind", "name", "nearest"),
    [
        ("field", "per-layers", "per-layer"),
        ("mixer", "selective_ssm", "selective-ssm"),
        ("scheme", "rk5", "rk4"),
        ("optimiser", "adam", "adamw"),
    ],
)
def test_unknown_names_offer_the_nearest(kind: str, name: str, nearest: str):
    registry = REGISTRIES[kind]
    for ask in (registry.__getitem__, registry.check):
        with pytest.raises(UserError, match=f"unknown {kind} '{name}'; did you mean .*{nearest}"):
            ask(name)
