"""Running a search: any options of a run, as ordinary runs on an executor. See docs/tuning.md.

A directory holds `study.yaml` (what was asked), the study, `tuning.json` (every trial, the best,
importances) and `best.yaml`, a configuration that `train --config` and `compare` take.
"""

import copy
import dataclasses
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from qkvflow.compilation import use_compilation_cache
from qkvflow.digests import write_sealed
from qkvflow.errors import UserError
from qkvflow.experiment.display import Display, SilentDisplay
from qkvflow.experiment.executors import AbstractExecutor, ExecutorOptions, make_executor, perform
from qkvflow.experiment.plan import difference
from qkvflow.experiment.resolve import Entry, entry_of
from qkvflow.experiment.search import Search, nested
from qkvflow.experiment.study import Study
from qkvflow.experiment.units import Queue, Unit
from qkvflow.files import write_whole
from qkvflow.runs import rundir
from qkvflow.runs.config import RunConfig, make_config
from qkvflow.runs.config_files import read_yaml
from qkvflow.runs.corpus import load_data
from qkvflow.training.signals import signals

REQUEST, RESULT, BEST = "study.yaml", "tuning.json", "best.yaml"
EVALUATIONS = 10
# What a trial does unless it is told otherwise.
_OF_TRIALS: dict[str, dict[str, Any]] = {
    "train": {"eval_tokens": None, "eval_test": False, "samples": "none"},
    "checkpoint": {"finished": "none"},
}


def run_search(
    content: Mapping[str, Any],
    search: Search,
    out: str | Path,
    *,
    evaluations: int = EVALUATIONS,
    executor: AbstractExecutor | None = None,
    display: Display | None = None,
    command: str | None = None,
) -> dict[str, Any]:
    """Search around the run that `content` configures, or go on with it; returns `tuning.json`.

    A signal ends in `Stopped`, with all saved; the same call goes on.
    """
    use_compilation_cache()
    directory, display = Path(out), display or SilentDisplay()
    executor = executor or make_executor("local", ExecutorOptions())
    if "seed" in (content.get("train") or {}):
        raise UserError("train.seed is not for a search, which has seeds of its own; give --seeds")
    if evaluations < 1:
        raise UserError(f"evaluations must be at least 1, not {evaluations}")
    trials = _Trials(content, evaluations, directory.name)
    base = trials.entry({})
    with rundir.writing(directory, resumable=False):
        directory.mkdir(parents=True, exist_ok=True)
    with rundir.locked(directory), signals() as caught:
        request = {"config": base.config.to_dict(), **search.to_dict(), "evaluations": evaluations}
        _keep(directory, request, command)
        study = Study(directory, search, trials.unit, evaluations=evaluations)
        expected = Unit("", {}, directory / "none", base.flops_per_step * base.steps, "")
        queue = Queue([], study)
        queue.bytes = base.bytes
        perform(
            executor,
            queue,
            [expected] * study.left,
            what="trials",
            logs=directory / "logs",
            display=display,
            caught=caught,
        )
        result = study.describe()
        if result["best"] is None:
            raise UserError(f"{none_ended(result)}; search elsewhere")
        with rundir.writing(directory):
            write_sealed(directory / RESULT, {**result, "evaluations": evaluations})
            write_whole(directory / BEST, _best(content, result))
    return result


class _Trials:
    """The runs of a search: the configured one, with what a trial changes."""

    def __init__(self, content: Mapping[str, Any], evaluations: int, group: str) -> None:
        self._content, self._evaluations, self._group = dict(content), evaluations, group
        self._vocabulary = cache(_vocabulary)

    def entry(self, changes: dict[str, dict[str, Any]]) -> Entry:
        config = make_config(_OF_TRIALS, self._content, changes)
        every = max(1, math.ceil(config.train.steps / self._evaluations))
        train = dataclasses.replace(config.train, eval_every=every)
        config = dataclasses.replace(config, train=train)
        vocab_size = self._vocabulary(config.data.spec, config.data.dir, config.data.tokenizer)
        return entry_of(config.track.label or config.model.name, config, vocab_size)

    def unit(
        self, changes: dict[str, dict[str, Any]], seed: int, directory: Path, title: str
    ) -> Unit:
        return self.entry(changes).run(seed, directory, title, group=self._group)


def _vocabulary(spec: str, directory: str | None, tokenizer: str) -> int:
    data = {"spec": spec, "dir": directory, "tokenizer": tokenizer}
    return load_data(make_config({"data": data})).tokenizer.vocab_size


def _keep(directory: Path, request: dict[str, Any], command: str | None) -> None:
    """Write down what is asked, or refuse to mix it with what was asked before."""
    path = directory / REQUEST
    if not path.exists():
        if any(each.name[0] != "." for each in directory.iterdir()):
            raise UserError(f"{directory} holds no search and is not empty; choose another --out")
    else:
        written = read_yaml(path)
        free = ("trials", "command")
        old, new = ({k: v for k, v in r.items() if k not in free} for r in (written, request))
        if (differs := difference(old, new)) is not None:
            raise UserError(
                f"{directory} holds another search: {differs}; choose another --out, or delete it"
            )
    text = yaml.safe_dump({**request, "command": command}, sort_keys=False, allow_unicode=True)
    with rundir.writing(directory, resumable=False):
        write_whole(path, text)


def _best(content: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    made: dict[str, Any] = copy.deepcopy(dict(content))
    for section, values in nested(result["values"]).items():
        made[section] = {**(made.get(section) or {}), **values}
        if "steps" in values:
            made[section].pop("tokens", None)  # Two budgets, of which tokens would be taken.
    best = result["trials"][[each["number"] for each in result["trials"]].index(result["best"])]
    head = f"# Trial {best['number']} of {len(result['trials'])}: {best['loss']:.4f} nats per token"
    return f"{head} on validation.\n{yaml.safe_dump(made, sort_keys=False, allow_unicode=True)}"


def none_ended(result: Mapping[str, Any], of: str = "") -> str:
    """Why a study has found nothing."""
    errors = (each["error"] for each in result["trials"])
    return f"no trial{of} came to its end ({next(filter(None, errors), 'none was run')})"


def tuned(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """The configuration with what a study found best."""
    return make_config(config.to_dict(), nested(values))
