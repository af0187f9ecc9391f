"""Trained models from disk: a run directory or an export (or import), read alike.

Nothing that is read here can execute anything: JSON, YAML read safely, safetensors and Orbax
arrays.
"""

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import equinox as eqx
import jax

from qkvflow.data import Tokenizer, load_tokenizer
from qkvflow.digests import SEAL, file_digest, is_intact
from qkvflow.distributed import Layout, one_device
from qkvflow.errors import Note, UserError
from qkvflow.lm import LanguageModel
from qkvflow.lm.assembly import abstract_model
from qkvflow.runs import rundir
from qkvflow.runs.checkpoint import Checkpoints
from qkvflow.runs.config import RunConfig, make_config
from qkvflow.runs.resume_rules import check_config
from qkvflow.runs.weights import WEIGHTS, named_arrays, path_name, read_weights

CONFIG_JSON = "config.json"
FORMAT = 1
"""Of exports."""
FILES = "files"
"""Hashes in the `config.json` of exports; those of earlier versions have none."""
_MOST_CONFIG = 10 << 20


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained model, ready to use."""

    model: LanguageModel
    tokenizer: Tokenizer
    config: RunConfig
    step: int | None = None
    """The step its weights are of, for a run directory."""
    corpus_sha256: str | None = None
    """Of the text it was trained on, where that is known."""


def load(path: str | Path, *, step: int | str = "best", layout: Layout | None = None) -> Trained:
    """The model of a run directory or of an export: `.model`, `.tokenizer`, `.config`.

    It is on one device, or divided as `layout` says.
    """
    path = Path(path)
    if path.name == WEIGHTS and path.is_file():
        path = path.parent
    if (path / rundir.CONFIG).exists():
        return load_run(path, step=step, layout=layout)
    if (path / WEIGHTS).exists():
        trained = _load_export(path, layout)
        if isinstance(step, int) and step != trained.step:
            raise UserError(
                f"{path} is an export and has no checkpoints; leave --checkpoint {step} out"
            )
        return trained
    if not path.exists():
        raise UserError(f"{path} does not exist; give a run directory or an export")
    raise UserError(f"{path} is neither a run directory nor an export; check the path")


def read_config(path: str | Path) -> tuple[RunConfig, int]:
    """The configuration of a run directory or an export, and the size of its vocabulary; weights
    are not read."""
    path = Path(path)
    if not (path / rundir.CONFIG).exists() and (path / CONFIG_JSON).exists():
        config = make_config(_read_export(path)["config"])
    else:
        config = make_config(rundir.read_run_config(path))
    return config, load_tokenizer(path / rundir.TOKENIZER).vocab_size


def load_run(
    directory: str | Path, *, step: int | str = "best", layout: Layout | None = None
) -> Trained:
    """The model of a run directory: at its best checkpoint, its `last`, or one of a number."""
    directory = Path(directory)
    config = make_config(rundir.read_run_config(directory))
    checkpoints = Checkpoints(directory, read_only=True)
    try:
        chosen = _choose(directory, checkpoints, config, step)
        host = checkpoints.restore_host(chosen)
        check_config(host["config"], config, step=0, extend=True)
        tokenizer = _run_tokenizer(directory, host["data"]["tokenizer_identity"])
        params, static = abstract_model(config.model.config, tokenizer.vocab_size)
        arrays = checkpoints.restore_model(chosen, (layout or one_device()).like(params))
    finally:
        checkpoints.close()
    text = host["data"]["sha256"]
    return Trained(eqx.combine(arrays, static), tokenizer, config, chosen, text)


def tokenizer_problem(directory: Path, identity: str) -> str | None:
    """What is wrong with the tokenizer of a run, if it is not the one it was trained with."""
    path = directory / rundir.TOKENIZER
    if not path.exists():
        return f"{path} is gone"
    try:
        same = load_tokenizer(path).identity == identity
    except UserError:
        return f"{path} is damaged"
    return None if same else f"{path} is not the tokenizer this run was trained with"


def _run_tokenizer(directory: Path, identity: str) -> Tokenizer:
    if problem := tokenizer_problem(directory, identity):
        raise UserError(f"{problem}; '{rundir.resume_command(directory)}' writes it again")
    return load_tokenizer(directory / rundir.TOKENIZER)


def _choose(directory: Path, checkpoints: Checkpoints, config: RunConfig, step: int | str) -> int:
    steps, record = checkpoints.steps(), rundir.read_record(directory) or {}
    if not steps:
        if record.get("status") == "finished":
            raise UserError(f"{directory} kept no checkpoint (checkpoint.finished was none)")
        raise UserError(f"{directory} has no checkpoint yet; let the run reach one")
    if step in ("best", "last"):
        best = checkpoints.restore_host(steps[-1])["progress"]["best_step"]
        wants_best = step == "best" and config.checkpoint.best
        chosen = best if wants_best and best in steps else steps[-1]
        lost = []
        if record.get("status") == "finished" and config.checkpoint.finished == "all":
            wanted = [best if wants_best else None]
            wanted.append(record["budget"]["steps"])
            lost = [each for each in wanted if each is not None and each not in steps]
        if lost:
            warnings.warn(
                f"the checkpoint of step {lost[-1]} of {directory} is gone: this is step {chosen}; "
                f"without its {rundir.RECORD}, '{rundir.resume_command(directory)}' makes it again",
                Note,
                stacklevel=2,
            )
        return chosen
    if step not in steps:
        known = ", ".join(map(str, steps))
        raise UserError(f"{directory} has no checkpoint of step {step}; it has {known}")
    return int(step)


def _read_export(path: Path) -> dict[str, Any]:
    content = _read_json(path / CONFIG_JSON)
    if content.get("format") != "qkvflow" or not isinstance(content.get("config"), dict):
        raise UserError(f"{path / CONFIG_JSON} is not a qkvflow export; give one made by export")
    if content.get("version") != FORMAT:
        raise UserError(
            f"{path} is an export of format {content.get('version')!r}, this version reads "
            f"{FORMAT}; export it again"
        )
    return content


def _load_export(path: Path, layout: Layout | None) -> Trained:
    content = _read_export(path)
    _check_files(path, content)
    config: RunConfig = make_config(content["config"])
    tokenizer = load_tokenizer(path / rundir.TOKENIZER)
    params, static = abstract_model(config.model.config, tokenizer.vocab_size)
    arrays = read_weights(path / WEIGHTS, named_arrays(params))
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    filled = jax.tree.unflatten(structure, [arrays[path_name(each)] for each, _ in leaves])
    if layout is not None:
        filled = layout.place(filled)
    step, text = content.get("step"), content.get("corpus_sha256")
    return Trained(eqx.combine(filled, static), tokenizer, config, step, text)


def _check_files(path: Path, content: dict[str, Any]) -> None:
    files = content.get(FILES)
    if files is None and SEAL not in content:
        return
    if not isinstance(files, dict) or not is_intact(content):
        raise UserError(f"{path / CONFIG_JSON} was altered since it was made; export it again")
    for name in (WEIGHTS, rundir.TOKENIZER):
        try:
            same = file_digest(path / name) == files.get(name)
        except OSError as error:
            raise UserError(
                f"cannot read {path / name}: {error.strerror}; export it again"
            ) from None
        if not same:
            raise UserError(
                f"{path / name} is damaged or was altered since it was made; export it again"
            )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MOST_CONFIG:
            raise UserError(f"{path} is too large to be a configuration; export it again")
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} cannot be read as JSON; export it again") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a qkvflow export; give one made by export")
    return content
