"""A run from its configuration to its record: `train`, `resume` and `load_run`.

This is the one place of the room where a configuration becomes a model.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from qkvflow.data import (
    SPLITS,
    EncodedCorpus,
    TokenArray,
    Tokenizer,
    encode_corpus,
    get_tokenizer,
    load_corpus,
    load_tokenizer,
    require_context,
)
from qkvflow.data.encode import encode_split
from qkvflow.errors import UserError, unknown
from qkvflow.files import write_whole
from qkvflow.lm import LanguageModel
from qkvflow.parallel import Layout, check_batch, hosts, make_layout, one_device
from qkvflow.paths import cache_dir
from qkvflow.training import rundir
from qkvflow.training.checkpoint import Checkpoints
from qkvflow.training.config import RunConfig, make_config
from qkvflow.training.config_files import read_yaml, write_yaml
from qkvflow.training.ending import finish, write_record
from qkvflow.training.figure import draw_losses
from qkvflow.training.loop import Diverged, Loop, Progress, Sample, abstract_state
from qkvflow.training.optim import evaluation_params
from qkvflow.training.record import now
from qkvflow.training.reporter import Reporter, Silent
from qkvflow.training.resume_rules import check_config, check_data, check_mesh
from qkvflow.training.selection import count_trained
from qkvflow.training.step import Seed, State, init_state, model_key, split_model
from qkvflow.training.track import NoTracker, make_tracker
from qkvflow.zoo import abstract, build_config


def train(
    config: RunConfig,
    out: str | Path,
    *,
    sample: Sample | None = None,
    reporter: Reporter | None = None,
    label: str | None = None,
    mesh: str | None = None,
    start: LanguageModel | None = None,
) -> dict[str, Any]:
    """Train a model in a fresh run directory; returns the content of its `record.json`.

    `sample(model, tokenizer, seed)` makes the text shown at evaluations. `mesh` says how devices
    are used, as `data=4,fsdp=2`; all are on `data` without it. `start` gives the first weights,
    which come from the seed without it. A user's mistake is a `UserError`; a signal ends in
    `Interrupted`, a loss that stays non-finite in `Diverged`.
    """
    use_compilation_cache()
    directory = Path(out)
    abstract(config.model.config, vocab_size=2)  # Impossible shapes are refused before any work.
    layout = make_layout(mesh)
    check_batch(layout.shape, config.train.batch_size, config.train.grad_accum)

    def refuse() -> None:
        if (directory / rundir.CONFIG).exists():
            rundir.create(directory)  # Refuses, before the corpus is read.

    hosts.first(refuse)
    encoded = _load_everywhere(config)
    _check_layout(layout, config, encoded)
    with ExitStack() as stack:

        def begin() -> None:
            rundir.create(directory)
            stack.enter_context(rundir.locked(directory))
            with rundir.writing(directory, resumable=False):
                encoded.tokenizer.save(directory)
                write_whole(directory / rundir.CONFIG, write_yaml(config))

        hosts.first(begin)
        return _run(
            config, directory, encoded, sample, reporter or Silent(), label, [], layout, start
        )


def resume(
    directory: str | Path,
    *,
    overrides: dict[str, Any] | None = None,
    extend: bool = False,
    sample: Sample | None = None,
    reporter: Reporter | None = None,
    mesh: str | None = None,
) -> dict[str, Any]:
    """Continue a run from its last checkpoint, to what it would have been uninterrupted.

    `overrides` may change what does not change the computation; `extend` allows more steps under
    a schedule that depends on their number. Devices, processes and `mesh` may be others than they
    were; sums may then round differently.
    """
    use_compilation_cache()
    layout = make_layout(mesh)
    directory = Path(directory)
    written = read_run_config(directory)
    config = make_config(written, overrides or {})
    finished = read_record(directory)
    if finished and finished["status"] == "finished" and config == make_config(written):
        (reporter or Silent()).note(f"{directory} is finished; nothing to do")
        return finished
    with ExitStack() as stack:
        hosts.first(lambda: stack.enter_context(rundir.locked(directory)))
        encoded = _load_everywhere(config)
        _check_layout(layout, config, encoded)
        label = (finished or {}).get("label")
        notes = _check(config, written, directory, encoded, extend, layout)

        def begin() -> None:
            with rundir.writing(directory):
                write_whole(directory / rundir.CONFIG, write_yaml(config))

        hosts.first(begin)
        return _run(config, directory, encoded, sample, reporter or Silent(), label, notes, layout)


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained model, ready to use."""

    model: LanguageModel
    tokenizer: Tokenizer
    config: RunConfig
    step: int | None = None
    """The step its weights are of, for a run directory."""


def load_run(
    directory: str | Path, *, step: int | str = "best", layout: Layout | None = None
) -> Trained:
    """The model of a run directory: at its best checkpoint, its `last`, or one of a number.

    It is on one device, or divided as `layout` says.
    """
    directory = Path(directory)
    config = make_config(read_run_config(directory))
    tokenizer = load_tokenizer(directory / rundir.TOKENIZER)
    checkpoints = Checkpoints(directory, read_only=True)
    try:
        chosen, _ = _choose(directory, checkpoints, step)
        params, static = abstract_model(config, tokenizer.vocab_size)
        like = (layout or one_device()).like(abstract_state(config, params))
        state = checkpoints.restore(chosen, like)
    finally:
        checkpoints.close()
    chosen_params = evaluation_params(config.optim, state.opt_state, state.params)
    return Trained(eqx.combine(chosen_params, static), tokenizer, config, chosen)


def load_data(config: RunConfig) -> EncodedCorpus:
    """The corpus of a configuration as tokens, checked against its context."""
    data = config.data
    directory = None if data.dir is None else Path(data.dir)
    corpus = load_corpus(data.spec, data_dir=directory, seed=data.seed)
    encoded = encode_corpus(corpus, get_tokenizer(data.tokenizer, corpus), progress=True)
    require_context(encoded, config.context)
    return encoded


def _load_everywhere(config: RunConfig) -> EncodedCorpus:
    """The same corpus in every process: encoded by the first, read by the others."""
    hosts.require_same("the configuration", hashlib.sha256(repr(config).encode()).hexdigest())
    encoded = hosts.first_then_all(lambda: load_data(config))
    hosts.require_same("the text", f"{encoded.corpus.sha256} {encoded.tokenizer.identity}")
    return encoded


def _check_layout(layout: Layout, config: RunConfig, encoded: EncodedCorpus) -> None:
    train, shape = config.train, config.model.config
    hosts.require_same("the mesh", str(layout.shape))
    params = abstract_model(config, encoded.tokenizer.vocab_size)[0]
    heads = shape.num_heads if "attention" in shape.block else None
    layout.check(params, train.batch_size, train.grad_accum, num_heads=heads)


def load_split(
    trained: Trained, split: str, *, spec: str | None = None, data_dir: str | None = None
) -> tuple[TokenArray, float | None]:
    """A split of the run's own corpus, or of another, in the model's tokens; and the floor."""
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    data = trained.config.data
    where = data_dir or (data.dir if spec is None else None)
    directory = None if where is None else Path(where)
    corpus = load_corpus(spec or data.spec, data_dir=directory, seed=data.seed)
    tokens = encode_split(getattr(corpus, split), trained.tokenizer)
    if len(tokens) < 2:
        raise UserError(f"'{corpus.spec}' has no {split} split to speak of; choose another --split")
    return tokens, corpus.floor


def read_run_config(directory: Path) -> dict[str, Any]:
    """The configuration of a run directory, as written."""
    if not (directory / rundir.CONFIG).exists():
        what = "is not a run directory" if directory.exists() else "does not exist"
        raise UserError(f"{directory} {what}; give the --out of a 'qkvflow train'")
    return read_yaml(directory / rundir.CONFIG)


def read_record(directory: Path) -> dict[str, Any] | None:
    """`record.json`, or None if the run has not ended."""
    try:
        return json.loads((directory / rundir.RECORD).read_text("utf-8"))
    except (OSError, ValueError):
        return None


def use_compilation_cache() -> None:
    """Keep compiled programs in the user's cache directory, unless JAX is told otherwise."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ or jax.config.values["jax_compilation_cache_dir"]:
        return
    jax.config.update("jax_compilation_cache_dir", str(cache_dir("xla")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def initial_params(config: RunConfig, vocab_size: int) -> Callable[[Seed], Any]:
    """`init(seed)`: the arrays of a fresh model. Pure: compile it, map it over seeds."""

    def init(seed: Seed) -> Any:
        key = model_key(seed)
        return split_model(build_config(config.model.config, vocab_size=vocab_size, key=key))[0]

    return init


def abstract_model(config: RunConfig, vocab_size: int) -> tuple[Any, Any]:
    """Shapes of the arrays, and the rest of the model."""
    model = abstract(config.model.config, vocab_size=vocab_size)
    return eqx.partition(model, lambda x: isinstance(x, jax.ShapeDtypeStruct))


def _choose(
    directory: Path, checkpoints: Checkpoints, step: int | str
) -> tuple[int, dict[str, Any]]:
    steps = checkpoints.steps()
    if not steps:
        raise UserError(f"{directory} has no checkpoint yet; let the run reach one")
    if step in ("best", "last"):
        host = checkpoints.restore_host(steps[-1])
        best = host["progress"]["best_step"]
        return (best if step == "best" and best in steps else steps[-1]), host
    if step not in steps:
        known = ", ".join(map(str, steps))
        raise UserError(f"{directory} has no checkpoint of step {step}; it has {known}")
    return int(step), checkpoints.restore_host(int(step))


def _check(
    config: RunConfig,
    written: dict[str, Any],
    directory: Path,
    encoded: EncodedCorpus,
    extend: bool,
    layout: Layout,
) -> list[str]:
    """Against the last checkpoint, or, before the first, against the configuration alone."""
    checkpoints = Checkpoints(directory, read_only=True)
    try:
        steps = checkpoints.steps()
        if not steps:
            return check_config(written, config, step=0, extend=extend)
        host = checkpoints.restore_host(steps[-1])
    finally:
        checkpoints.close()
    notes = check_config(host["config"], config, step=steps[-1], extend=extend)
    check_data(host["data"], encoded.describe(), encoded.tokenizer.identity)
    return notes + check_mesh(host.get("mesh"), str(layout.shape))


def _run(
    config: RunConfig,
    directory: Path,
    encoded: EncodedCorpus,
    sample: Sample | None,
    reporter: Reporter,
    label: str | None,
    notes: list[str],
    layout: Layout,
    start: LanguageModel | None = None,
) -> dict[str, Any]:
    reporter = reporter if hosts.is_first() else Silent()
    data = {
        "sha256": encoded.corpus.sha256,
        "tokenizer_identity": encoded.tokenizer.identity,
    }
    fingerprint = {"config": config.to_dict(), "data": data, "mesh": str(layout.shape)}
    with _opened(directory, config) as (checkpoints, tracker):
        params, static = abstract_model(config, encoded.tokenizer.vocab_size)
        loop = Loop(
            config,
            directory,
            static,
            encoded,
            checkpoints,
            fingerprint,
            reporter,
            tracker,
            sample,
            layout,
        )
        state, progress = _begin(loop, params, start)
        progress.label = label or progress.label or config.model.name
        progress.started = progress.started or now()

        def cut_back() -> None:
            with rundir.writing(directory):
                rundir.cut_back(directory, progress.step, progress.samples_bytes)

        hosts.first(cut_back)
        checkpoints.check_room(state)
        lines = [*notes, *_describe(loop, params, progress)]
        reporter.start(first_step=progress.step, steps=config.train.steps, lines=lines)
        try:
            state = loop.run(state, progress)
            record = finish(loop, state, params, progress)
        except Diverged as error:
            write_record(loop, params, progress, error=str(error))
            raise
        finally:
            reporter.stop()
    if hosts.is_first() and (problem := draw_losses(directory)) is not None:
        reporter.note(problem)
    return record


@contextmanager
def _opened(directory: Path, config: RunConfig) -> Iterator[tuple[Checkpoints, Any]]:
    tracker = make_tracker(directory, config) if hosts.is_first() else NoTracker()
    try:
        checkpoints = Checkpoints(directory, config.checkpoint)
        try:
            yield checkpoints, tracker
        finally:
            checkpoints.close()
    finally:
        tracker.close()


def _begin(loop: Loop, params: Any, start: LanguageModel | None) -> tuple[State, Progress]:
    """The state of the last checkpoint, or `start`, or fresh weights from the seed."""
    steps = loop.checkpoints.steps()
    if steps:
        host = loop.checkpoints.restore_host(steps[-1])
        like = loop.layout.like(abstract_state(loop.config, params))
        progress = Progress(**host["progress"])
        # A run that had reached its end goes on when it was given more steps.
        progress.done = progress.done and progress.step >= loop.config.train.steps
        return loop.checkpoints.restore(steps[-1], like), progress
    if start is not None:
        return _begin_from(loop, params, start), Progress()
    if loop.config.train.start is not None:
        raise UserError(
            f"{loop.directory} was stopped before the weights it was to begin from were saved; "
            "delete it and call 'qkvflow finetune' again"
        )
    fresh = initial_params(loop.config, loop.encoded.tokenizer.vocab_size)
    divided = loop.layout.shardings(abstract_state(loop.config, params))
    init = jax.jit(lambda seed: init_state(fresh(seed), loop.optimiser), out_shardings=divided)
    return init(np.int32(loop.config.train.seed)), Progress()


def _begin_from(loop: Loop, params: Any, start: LanguageModel) -> State:
    """The state before the first step from given weights, saved at once: no seed gives it again."""
    given = split_model(start)[0]
    shapes = [jax.tree.map(lambda leaf: leaf.shape, each) for each in (given, params)]
    if jax.tree.structure(given) != jax.tree.structure(params) or shapes[0] != shapes[1]:
        raise UserError(
            "the weights to begin from are of another model or vocabulary than the configuration; "
            "keep the model and its tokenizer"
        )
    state = loop.layout.place(init_state(given, loop.optimiser))
    host = {**loop.fingerprint, "progress": dataclasses.asdict(Progress())}
    loop.checkpoints.save(state, host, 0, None)
    loop.checkpoints.wait()
    return state


def _describe(loop: Loop, params: Any, progress: Progress) -> list[str]:
    config, encoded = loop.config, loop.encoded
    weights = sum(leaf.size for leaf in jax.tree.leaves(params))
    trained = count_trained(params, config.train.only)
    of_them = "" if trained == weights else f", {trained:,} of them trained ({config.train.only})"
    lines = [
        f"{config.model.name}: {weights:,} parameters{of_them}; {encoded.corpus.spec}: "
        f"{len(encoded.train):,} train tokens ({encoded.tokenizer.name}, vocabulary "
        f"{encoded.tokenizer.vocab_size}); {config.train.steps:,} steps of "
        f"{config.tokens_per_step:,} tokens; seed {config.train.seed}"
    ]
    if encoded.corpus.floor is not None:
        lines.append(f"the entropy rate of this source is {encoded.corpus.floor:.4f} nats/token")
    if loop.layout.shape.size > 1:
        lines.append(
            f"{loop.layout.shape.size} devices ({loop.layout.shape}) of {hosts.count()} process"
            f"{'es' if hosts.count() > 1 else ''}"
        )
    if progress.step:
        lines.append(f"resuming at step {progress.step}")
    return lines
