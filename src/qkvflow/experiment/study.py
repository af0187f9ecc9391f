"""A search with Optuna (extra `search`): trials are ordinary runs, on seeds that comparisons never
use.

A study lies in a directory: `study.log` is Optuna's journal, `trials/N/seed-S/` are the runs and
`trials/N/values.json` is what they try. What a trial tries depends on the sampler's seed, its
number and the trials before it alone, and whether it is pruned on the losses that are written down,
in their order: killed at any moment, the study goes on as if nothing had happened, and with one
worker its results are the same bits.
"""

import dataclasses
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qkvflow.digests import SEAL, read_sealed, sealed, was_altered, write_sealed
from qkvflow.errors import UserError
from qkvflow.experiment.search import Search, nested
from qkvflow.experiment.units import AbstractSource, Unit
from qkvflow.files import to_json
from qkvflow.records import read_record
from qkvflow.runs.rundir import METRICS, ask_to_stop, read_lines, writing

JOURNAL, VALUES = "study.log", "values.json"
_STARTING_TRIALS = 5
"""Random ones, and trials that are never pruned."""
_NOT_PRUNED_BEFORE = 1 / 3
"""Of a run: early losses say little of late ones."""

MakeUnit = Callable[[dict[str, dict[str, Any]], int, Path, str], Unit]
"""`make(changes, seed, directory, title)`: the run with what a trial changes."""


@dataclasses.dataclass
class _Trial:
    """One that is under way."""

    trial: Any
    units: list[Unit]

    @property
    def number(self) -> int:
        return self.trial.number


class Study(AbstractSource):
    """One search in its directory, which nobody else works in. `evaluations` are those of a run."""

    def __init__(
        self,
        directory: Path,
        search: Search,
        make_unit: MakeUnit,
        *,
        evaluations: int,
    ) -> None:
        self.directory, self.search = directory, search
        self._make_unit = make_unit
        self._optuna = optuna = import_optuna()
        pruner = optuna.pruners.NopPruner()
        if search.prune:
            pruner = optuna.pruners.MedianPruner(
                n_startup_trials=_STARTING_TRIALS,
                n_warmup_steps=math.ceil(_NOT_PRUNED_BEFORE * evaluations),
            )
        with writing(directory):
            directory.mkdir(parents=True, exist_ok=True)
            storage = optuna.storages.JournalStorage(_Journal(directory / JOURNAL))
        self._study = optuna.create_study(
            storage=storage, study_name="search", load_if_exists=True, pruner=pruner
        )
        if search.is_grid:
            for values in search.grid():
                self._study.enqueue_trial(values, skip_if_exists=True)
        self._open: list[_Trial] = []
        self._waiting: list[Unit] = []
        for trial in self._study.get_trials(states=[optuna.trial.TrialState.RUNNING]):
            self._begin(optuna.trial.Trial(self._study, trial._trial_id))

    @property
    def left(self) -> int:
        waiting = self._study.get_trials(
            deepcopy=False, states=[self._optuna.trial.TrialState.WAITING]
        )
        asked = len(self._study.get_trials(deepcopy=False)) - len(waiting)
        to_come = int(min(self.search.trials, self.search.points)) - asked
        return len(self._waiting) + max(0, to_come) * len(self.search.seeds)

    def more(self, running: Sequence[Unit]) -> list[Unit]:
        self.watch(running)
        while not self._waiting and self.left:
            number = len(self._study.get_trials(deepcopy=False))
            state = np.random.SeedSequence([self.search.seed, number]).generate_state(1)
            self._study.sampler = self._optuna.samplers.TPESampler(
                n_startup_trials=_STARTING_TRIALS, seed=int(state[0])
            )
            self._begin(self._study.ask())
            # Where its runs are done already, its loss is known before the next is asked for.
            self.watch(running)
        handed, self._waiting = self._waiting, []
        return handed

    def watch(self, running: Sequence[Unit]) -> None:
        for each in list(self._open):
            if self._follow(each):
                self._open.remove(each)
                gone = {unit.file for unit in each.units}
                self._waiting = [unit for unit in self._waiting if unit.file not in gone]
        known = {unit.file for each in self._open for unit in each.units}
        for unit in running:
            if unit.file.is_relative_to(self.directory) and unit.file not in known:
                ask_to_stop(unit.file.parent)

    def _begin(self, trial: Any) -> None:
        """The runs of a trial that was asked for, or the end of one that cannot be run."""
        values = {space.key: space.suggest(trial) for space in self.search.spaces}
        if self._repeat(trial, values):
            return
        place = self._place(trial.number, values)
        told = ", ".join(f"{key.partition('.')[2]} {_short(v)}" for key, v in values.items())
        try:
            units = [
                self._make_unit(nested(values), seed, place / f"seed-{seed}", told)
                for seed in self.search.seeds
            ]
        except UserError as error:
            trial.set_user_attr("error", str(error))
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            return
        self._open.append(_Trial(trial, units))
        self._waiting += [unit for unit in units if not unit.done]

    def _place(self, number: int, values: dict[str, Any]) -> Path:
        """The directory of a trial, without runs of other values: a journal that lost lines asks
        for other trials than those that were run."""
        place = self.directory / "trials" / f"{number:04}"
        path = place / VALUES
        if path.exists():
            try:
                if read_sealed(path)["values"] == json.loads(to_json(values)):
                    return place
            except (UserError, KeyError):
                pass
            shutil.rmtree(place)
        with writing(self.directory):
            write_sealed(path, {"values": values})
        return place

    def _repeat(self, trial: Any, values: dict[str, Any]) -> bool:
        """What was tried already is not run again: it would be the same bits."""
        states = self._optuna.trial.TrialState
        for other in self._study.get_trials(states=[states.COMPLETE, states.PRUNED]):
            if other.params == values and other.number < trial.number:
                trial.set_user_attr("same_as", other.user_attrs.get("same_as", other.number))
                known = self._study.trials[trial.number].intermediate_values
                for step, value in other.intermediate_values.items():
                    if step not in known:
                        trial.report(value, step)
                value = other.value if other.state == states.COMPLETE else None
                self._study.tell(trial, value, state=other.state)
                return True
        return False

    def _follow(self, each: _Trial) -> bool:
        """Take in what a trial's runs have written; whether it is over."""
        states, trial = self._optuna.trial.TrialState, each.trial
        known = self._study.trials[each.number].intermediate_values
        if known and trial.should_prune():
            self._study.tell(trial, state=states.PRUNED)
            return True
        curves = [_losses(unit) for unit in each.units]
        for step in range(len(known) + 1, min(map(len, curves)) + 1):
            value = math.fsum(curve[step - 1] for curve in curves) / len(curves)
            trial.report(value, step)
            if trial.should_prune():
                self._study.tell(trial, state=states.PRUNED)
                return True
        if not all(unit.done for unit in each.units):
            return False
        records = [read_record(unit.file) for unit in each.units]
        losses = [record.loss("validation", "nats") for record in records]
        known_losses = [loss for loss in losses if loss is not None]
        if len(known_losses) < len(losses):
            errors = [record.error for record in records if record.error]
            trial.set_user_attr("error", (errors or ["no loss"])[0])
            # As bad as can be, so that the sampler goes elsewhere.
            self._study.tell(trial, math.inf)
        else:
            self._study.tell(trial, math.fsum(known_losses) / len(known_losses))
        return True

    def describe(self) -> dict[str, Any]:
        """Every trial, which is best (none where no trial came to its end), and how much each
        option matters."""
        self.watch([])
        trials = [self._describe(trial) for trial in self._study.trials]
        trials = [each for each in trials if each["state"] not in ("waiting", "running")]
        complete = [each for each in trials if each["loss"] is not None]
        best = min(complete, key=lambda each: (each["loss"], each["number"]), default=None)
        return {
            **self.search.to_dict(),
            "split": "validation",
            "trials": trials,
            "best": best and best["number"],
            "values": best["values"] if best else {},
            "importances": self._importances(),
        }

    def _describe(self, trial: Any) -> dict[str, Any]:
        complete = trial.state == self._optuna.trial.TrialState.COMPLETE
        failed = complete and not math.isfinite(trial.value)
        return {
            "number": trial.number,
            "state": "failed" if failed or trial.state.name == "FAIL" else trial.state.name.lower(),
            "values": dict(trial.params),
            "loss": trial.value if complete and not failed else None,
            "curve": [trial.intermediate_values[k] for k in sorted(trial.intermediate_values)],
            "same_as": trial.user_attrs.get("same_as"),
            "error": trial.user_attrs.get("error"),
        }

    def _importances(self) -> dict[str, float]:
        """Of each option for being among the better trials (PED-ANOVA, Watanabe et al. 2023);
        empty where there are too few."""
        optuna = self._optuna
        kept = optuna.create_study()
        for trial in self._study.get_trials(states=[optuna.trial.TrialState.COMPLETE]):
            if math.isfinite(trial.value):
                kept.add_trial(trial)
        if len(kept.trials) < _STARTING_TRIALS:
            return {}
        try:
            found = optuna.importance.get_param_importances(kept)
        except (ValueError, RuntimeError, ZeroDivisionError):
            return {}
        return {key: float(value) for key, value in found.items() if math.isfinite(value)}


class Studies(AbstractSource):
    """Several at once: a free worker serves the one with the fewest runs under way."""

    def __init__(self, studies: Sequence[Study]) -> None:
        self._studies = studies

    @property
    def left(self) -> int:
        return sum(study.left for study in self._studies)

    def more(self, running: Sequence[Unit]) -> list[Unit]:
        def busy(study: Study) -> int:
            return sum(unit.file.is_relative_to(study.directory) for unit in running)

        for study in sorted(self._studies, key=busy):
            if units := study.more(running):
                return units
        return []

    def watch(self, running: Sequence[Unit]) -> None:
        for study in self._studies:
            study.watch(running)


def import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise UserError(
            "a search needs Optuna; install it with pip install 'qkvflow[search]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _losses(unit: Unit) -> list[float]:
    """Validation losses in order, up to the first that is not finite."""
    found = []
    for line in read_lines(unit.file.parent / METRICS):
        if line.get("kind") == "validation":
            if not isinstance(line.get("loss"), float):
                break
            found.append(line["loss"])
    return found


class _Journal:
    """Optuna's journal: a line of JSON for everything that happened, each with its hash. Nobody
    else writes it, because the directory is locked."""

    def __init__(self, path: Path) -> None:
        self._path, self._places = path, [0]
        path.touch()
        # Half a line that a killed process left is cut off, before another is written behind it.
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        with self._path.open("rb") as file:
            file.seek(self._places[log_number_from])
            for number, line in enumerate(file, start=log_number_from + 1):
                self._places[number:] = [self._places[number - 1] + len(line)]
                try:
                    log = json.loads(line)
                except (ValueError, RecursionError):
                    log = None
                if not isinstance(log, dict) or was_altered(log):
                    raise UserError(
                        f"{self._path} was altered in line {number} since it was written; delete "
                        "it and start the same command again, which finds the runs that are done"
                    )
                yield {key: value for key, value in log.items() if key != SEAL}

    def append_logs(self, logs: Sequence[Mapping[str, Any]]) -> None:
        lines = [json.dumps(sealed(log), separators=(",", ":")) + "\n" for log in logs]
        with self._path.open("ab") as file:
            file.write("".join(lines).encode())
            file.flush()
            os.fsync(file.fileno())


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
