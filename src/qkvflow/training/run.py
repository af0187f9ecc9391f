"""A run from its configuration to its record: `train` and `resume`."""

import dataclasses
import hashlib
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jax

from qkvflow.compilation import use_compilation_cache
from qkvflow.data import EncodedCorpus
from qkvflow.distributed import Layout, check_batch, hosts, make_layout
from qkvflow.errors import ResourceError, UserError, out_of_memory
from qkvflow.files import write_whole
from qkvflow.lm import LanguageModel, abstract
from qkvflow.runs import rundir
from qkvflow.runs.checkpoint import Checkpoints
from qkvflow.runs.config import RunConfig, make_config
from qkvflow.runs.config_files import write_yaml
from qkvflow.runs.corpus import load_data
from qkvflow.runs.depths import parse_depths
from qkvflow.runs.figure import draw_losses
from qkvflow.runs.load import Trained, tokenizer_problem
from qkvflow.runs.record import now
from qkvflow.runs.resume_rules import check_config, check_data, check_mesh
from qkvflow.schemes import AbstractSolver, check_injected, make_scheme
from qkvflow.training.ending import fail, finish
from qkvflow.training.loop import Diverged, Loop, Progress
from qkvflow.training.program import Program, make_program
from qkvflow.training.reporter import Reporter, SilentReporter
from qkvflow.training.step import TrainState
from qkvflow.training.teacher import check_teacher, with_teacher
from qkvflow.training.trackers import TRACKERS, make_tracker
from qkvflow.training.trainable import count_trained
from qkvflow.zoo.registry import COMPLETIONS, SCHEMES

_MOST_PARAMETERS = 10**13


def train(
    config: RunConfig,
    out: str | Path,
    *,
    reporter: Reporter | None = None,
    mesh: str | None = None,
    start: LanguageModel | None = None,
) -> dict[str, Any]:
    """Train a model in a fresh run directory; returns the content of its `record.json`.

    `mesh` says how devices are used, as `data=4,fsdp=2`; all are on `data` without it. `start`
    gives the first weights, which come from the seed without it. A user's mistake is a
    `UserError`; a signal ends in `Interrupted`, a loss that stays non-finite in `Diverged`.
    """
    use_compilation_cache()
    directory = Path(out)
    # Impossible shapes are refused before any work.
    check_size(abstract(config.model.config, vocab_size=2))
    layout = make_layout(mesh)
    check_batch(layout.shape, config.train.batch_size, config.train.grad_accum)

    def refuse() -> None:
        if (directory / rundir.CONFIG).exists():
            rundir.create(directory)  # Refuses, before the corpus is read.

    hosts.on_rank0(refuse)
    config, teacher = with_teacher(config)
    encoded = _load_everywhere(config)
    program = _make_program(config, encoded, layout, teacher)
    with ExitStack() as stack:

        def begin() -> None:
            rundir.create(directory)
            stack.enter_context(rundir.locked(directory))
            with rundir.writing(directory, resumable=False):
                # First what a run needs to go on: a kill may come between any two files.
                write_whole(directory / rundir.CONFIG, write_yaml(config))
                encoded.tokenizer.save(directory)

        hosts.on_rank0(begin)
        try:
            record = _run(program, directory, encoded, reporter or SilentReporter(), [], start)
        except UserError as error:
            # Room can be made and the run resumed; anything else asks for another command.
            if hosts.is_rank0() and type(error) is not ResourceError:
                rundir.remove_unbegun(directory)
            raise
    complete(directory, reporter)
    return record


def resume(
    directory: str | Path,
    *,
    overrides: dict[str, Any] | None = None,
    extend: bool = False,
    reporter: Reporter | None = None,
    mesh: str | None = None,
    patience: float = 0.0,
) -> dict[str, Any]:
    """Continue a run from its last checkpoint, to what it would have been uninterrupted.

    A directory that holds a `config.yaml` alone is begun. `overrides` may change what does not
    change the computation; `extend` allows more steps under a schedule that depends on their
    number. Devices, processes and `mesh` may be others than they were; sums may then round
    differently. `patience` is how many seconds to wait for another process to leave the directory.
    """
    use_compilation_cache()
    layout = make_layout(mesh)
    directory = Path(directory)
    written = rundir.read_run_config(directory)
    config = make_config(written, overrides or {})
    finished = rundir.read_record(directory)
    if finished and finished["status"] == "finished" and config == make_config(written):
        (reporter or SilentReporter()).note(_restored(directory, config, finished))
        complete(directory, reporter)
        return finished
    with ExitStack() as stack:
        hosts.on_rank0(lambda: stack.enter_context(rundir.locked(directory, patience)))
        config, teacher = with_teacher(config)
        if teacher is not None and not written.get("distill", {}).get("sha256"):
            written = make_config(written, {"distill": {"sha256": config.distill.sha256}}).to_dict()
        encoded = _load_everywhere(config)
        program = _make_program(config, encoded, layout, teacher)
        notes = _check(config, written, directory, encoded, extend, layout)

        def begin() -> None:
            with rundir.writing(directory):
                rundir.forget_stop(directory)
                encoded.tokenizer.save(directory)
                write_whole(directory / rundir.CONFIG, write_yaml(config))

        hosts.on_rank0(begin)
        record = _run(program, directory, encoded, reporter or SilentReporter(), notes)
    complete(directory, reporter)
    return record


def _restored(directory: Path, config: RunConfig, record: dict[str, Any]) -> str:
    """Nothing is left to do of a finished run, unless its tokenizer is gone or damaged."""
    identity = record["data"].get("tokenizer_identity")
    problem = identity and tokenizer_problem(directory, identity)
    if not problem:
        notes = rundir.altered(directory, record.get("files", {}))
        return f"{directory} is finished; {'; '.join(notes) or 'nothing to do'}"

    def restore() -> None:
        encoded = load_data(config)
        check_data(record["data"], encoded.describe(), encoded.tokenizer.identity)
        with rundir.locked(directory), rundir.writing(directory):
            encoded.tokenizer.save(directory)

    hosts.on_rank0(restore)
    return f"{directory} is finished; {problem}: written again from the corpus"


def complete(directory: Path, reporter: Reporter | None) -> None:
    """What belongs to a run of a special kind that has ended, such as a fine-tuned one."""
    for name in COMPLETIONS:
        if (directory / f".{name}.json").exists():
            COMPLETIONS[name](directory, reporter or SilentReporter())


def check_size(model: LanguageModel) -> None:
    """Refuse a model that no memory holds, which would end in an overflow somewhere."""
    sizes = [math.prod(leaf.shape) for leaf in jax.tree.leaves(model) if hasattr(leaf, "shape")]
    if sum(sizes) > _MOST_PARAMETERS:
        raise UserError(
            f"this model would have {sum(sizes):.1e} parameters; choose smaller sizes (d_model, "
            "mlp_ratio, num_steps, ...)"
        )


def _load_everywhere(config: RunConfig) -> EncodedCorpus:
    """The same corpus in every process: encoded by the first, read by the others."""
    hosts.require_same("the configuration", hashlib.sha256(repr(config).encode()).hexdigest())
    encoded = hosts.rank0_first(lambda: load_data(config))
    hosts.require_same("the text", f"{encoded.corpus.sha256} {encoded.tokenizer.identity}")
    return encoded


def _make_program(
    config: RunConfig, encoded: EncodedCorpus, layout: Layout, teacher: Trained | None
) -> Program:
    """The program, on a layout that suits it."""
    train, shape = config.train, config.model.config
    for depth in parse_depths(train.eval_depths):
        if depth in SCHEMES:
            scheme = make_scheme(depth, composition=shape.composition, tolerance=shape.tolerance)
            check_injected(depth, scheme, shape.injection != "none")
            if shape.value_residual and isinstance(scheme, AbstractSolver):
                raise UserError(f"value_residual needs steps; leave {depth} out of eval_depths")
    hosts.require_same("the mesh", str(layout.shape))
    taught = check_teacher(teacher, config, encoded.tokenizer)
    program = make_program(config, encoded.tokenizer.vocab_size, layout, taught)
    heads = shape.num_heads if "attention" in shape.mixers else None
    layout.check(program.params, train.batch_size, train.grad_accum, num_heads=heads)
    return program


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
            if (rundir.read_record(directory) or {}).get("status") == "finished":
                raise UserError(
                    f"{directory} is finished and kept no checkpoint (checkpoint.finished was "
                    "none): there is nothing to go on from; start a new run"
                )
            return check_config(written, config, step=0, extend=extend)
        host = checkpoints.restore_host(steps[-1])
    finally:
        checkpoints.close()
    notes = check_config(host["config"], config, step=steps[-1], extend=extend)
    check_data(host["data"], encoded.describe(), encoded.tokenizer.identity)
    return notes + check_mesh(host.get("mesh"), str(layout.shape))


def _run(
    program: Program,
    directory: Path,
    encoded: EncodedCorpus,
    reporter: Reporter,
    notes: list[str],
    start: LanguageModel | None = None,
) -> dict[str, Any]:
    reporter = reporter if hosts.is_rank0() else SilentReporter()
    config = program.config
    fingerprint = {
        "config": config.to_dict(),
        "data": {
            "sha256": encoded.corpus.sha256,
            "tokenizer_identity": encoded.tokenizer.identity,
        },
        "mesh": str(program.layout.shape),
    }
    with _opened(directory, config) as (checkpoints, tracker):
        loop = Loop(program, directory, encoded, checkpoints, fingerprint, reporter, tracker)
        state, progress = _begin(loop, start)
        progress.started = progress.started or now()

        def cut_back() -> None:
            with rundir.writing(directory):
                progress.altered += rundir.altered(directory, progress.written)
                notes.extend(progress.altered)
                rundir.cut_back(directory, progress.step, progress.samples_bytes)

        hosts.on_rank0(cut_back)
        checkpoints.check_room(state)
        lines = [*notes, *_describe(loop, progress)]
        reporter.start(first_step=progress.step, steps=config.train.steps, lines=lines)
        try:
            state = loop.run(state, progress)
            record = finish(loop, state, progress)
        except Diverged as error:
            fail(loop, progress, str(error))
            raise
        except Exception as error:
            if (problem := out_of_memory(error)) is not None:
                raise problem from error
            raise
        finally:
            reporter.stop()
    if hosts.is_rank0() and (problem := draw_losses(directory)) is not None:
        reporter.note(problem)
    return record


@contextmanager
def _opened(directory: Path, config: RunConfig) -> Iterator[tuple[Checkpoints, Any]]:
    tracker = (
        make_tracker(directory, config) if hosts.is_rank0() else TRACKERS["none"](directory, config)
    )
    try:
        checkpoints = Checkpoints(directory, config.checkpoint)
        try:
            yield checkpoints, tracker
        finally:
            checkpoints.close()
    finally:
        tracker.close()


def _begin(loop: Loop, start: LanguageModel | None) -> tuple[TrainState, Progress]:
    """The state of the last checkpoint, or `start`, or fresh weights from the seed."""
    program = loop.program
    if steps := loop.checkpoints.steps():
        host = loop.checkpoints.restore_host(steps[-1])
        known = {field.name for field in dataclasses.fields(Progress)}
        progress = Progress(**{k: v for k, v in host["progress"].items() if k in known})
        # A run that had reached its end goes on when it was given more steps or another target,
        # and one that was given fewer has reached it.
        progress.done = loop.reached(progress)
        parts = loop.checkpoints.restore(steps[-1], *program.state_parts())
        return program.join_state(*parts), progress
    if start is not None:
        state = program.init_from(start)
        # Saved at once: no seed gives it again.
        host = {**loop.fingerprint, "progress": dataclasses.asdict(Progress())}
        loop.checkpoints.save(*program.split_state(state), host, 0, None)
        loop.checkpoints.wait()
        return state, Progress()
    if loop.config.train.start is not None:
        raise UserError(
            f"{loop.directory} was stopped before the weights it was to begin from were saved; "
            "delete it and call 'qkvflow finetune' again"
        )
    return program.init(), Progress()


def _describe(loop: Loop, progress: Progress) -> list[str]:
    config, encoded, layout = loop.config, loop.encoded, loop.program.layout
    params = loop.program.params
    weights = sum(leaf.size for leaf in jax.tree.leaves(params))
    trained = count_trained(params, config.train.trainable)
    of_them = ""
    if trained != weights:
        of_them = f", {trained:,} of them trained ({config.train.trainable})"
    lines = [
        f"{config.model.name}: {weights:,} parameters{of_them}; {encoded.corpus.spec}: "
        f"{len(encoded.train):,} train tokens ({encoded.tokenizer.name}, vocabulary "
        f"{encoded.tokenizer.vocab_size}); {config.train.steps:,} steps of "
        f"{config.tokens_per_step:,} tokens; seed {config.train.seed}"
    ]
    if config.optim.warmup >= config.train.steps / 2 and progress.step == 0:
        lines.append(
            f"the warm-up takes {config.optim.warmup} of {config.train.steps} steps; a tenth would "
            f"be --warmup {max(config.train.steps // 10, 1)}"
        )
    if encoded.corpus.floor is not None:
        lines.append(f"the entropy rate of this source is {encoded.corpus.floor:.4f} nats/token")
    if layout.shape.size > 1:
        lines.append(
            f"{layout.shape.size} devices ({layout.shape}) of {hosts.count()} process"
            f"{'es' if hosts.count() > 1 else ''}"
        )
    if progress.step:
        lines.append(f"resuming at step {progress.step}")
    return lines
