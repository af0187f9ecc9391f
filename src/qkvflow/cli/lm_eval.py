"""`qkvflow lm-eval`: a trained model on the tasks of EleutherAI's evaluation harness."""

import argparse
import json
import logging
import traceback
from pathlib import Path
from typing import Any

from qkvflow.cli.evaluation import add_checkpoint_option, add_depth_options, checkpoint_step
from qkvflow.errors import UserError, one_line, unknown


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", metavar="DIR", help="a run directory or an export")
    parser.add_argument("--tasks", required=True, metavar="T,T,...", help="names of tasks")
    parser.add_argument(
        "--include-path", metavar="DIR", help="a directory with task files (YAML) of your own"
    )
    parser.add_argument("--num-fewshot", type=int, metavar="N", help="examples in the prompt")
    parser.add_argument("--limit", type=int, metavar="N", help="only so many examples of a task")
    parser.add_argument("--batch-size", type=int, metavar="N", help="sequences at once")
    add_depth_options(parser)
    add_checkpoint_option(parser)
    parser.add_argument("--out", metavar="FILE", help="write the harness's results there (JSON)")
    parser.add_argument("--json", action="store_true", help="one JSON object, for scripts")


def run(args: argparse.Namespace) -> int:
    for name in ("num_steps", "batch_size", "limit"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} must be positive, not {value}")
    tasks = [name.strip() for name in args.tasks.split(",") if name.strip()]
    if not tasks:
        raise UserError("--tasks must name tasks, such as lambada_openai,hellaswag")
    if not Path(args.dir).exists():  # Before all tasks are read, which takes a while.
        raise UserError(f"{args.dir} does not exist; give a run directory or an export")
    manager = _manager(tasks, args.include_path)

    from lm_eval import evaluator

    from qkvflow.cli.eval import at_depth
    from qkvflow.compilation import use_compilation_cache
    from qkvflow.evaluation.harness import HarnessModel
    from qkvflow.files import to_json, write_whole
    from qkvflow.runs.load import load
    from qkvflow.runs.rundir import writing

    # It would ask git, whose complaint where there is no repository nobody asked for.
    evaluator.get_git_commit_hash = lambda: None
    use_compilation_cache()
    trained = load(args.dir, step=checkpoint_step(args.checkpoint))
    model = at_depth(trained.model, trained.config.model.config, args)
    try:
        found: Any = evaluator.simple_evaluate(
            model=HarnessModel(model, trained.tokenizer, batch_size=args.batch_size),
            tasks=tasks,
            task_manager=manager,
            num_fewshot=args.num_fewshot,
            limit=args.limit,
            bootstrap_iters=1000,
            log_samples=False,
        )
    except OSError as error:  # Also of the libraries that fetch the tasks' data.
        raise UserError(
            f"the data of {args.tasks} cannot be had ({one_line(error, 160)}); connect to the "
            "network once, or give tasks with data of your own by --include-path"
        ) from error
    except UserError:
        raise
    except Exception as error:
        if (told := _of_a_task(error, args)) is None:
            raise
        raise told from error
    answer = {
        "path": args.dir,
        "model": trained.config.model.name,
        "step": trained.step,
        "num_steps": model.num_steps,
        "results": found["results"],
        "versions": found["versions"],
        "n-shot": found["n-shot"],
        "n-samples": found["n-samples"],
    }
    text = to_json(json.loads(json.dumps(answer, default=str)), 1)
    if args.out is not None:
        out = Path(args.out)
        with writing(out.parent, resumable=False):
            out.parent.mkdir(parents=True, exist_ok=True)
            write_whole(out, text + "\n")
    print(text if args.json else _table(answer))
    return 0


def _of_a_task(error: Exception, args: argparse.Namespace) -> UserError | None:
    """What the harness stumbled over, in one line, if it was in a task of the user's own."""
    where = traceback.extract_tb(error.__traceback__)
    ours = str(Path(__file__).parents[1])
    # Frames of this file begin every one of them.
    if args.include_path is None or any(ours in frame.filename for frame in where[1:]):
        return None
    said = f": {one_line(error, 160)}" if str(error) else ""
    return UserError(
        f"the harness cannot use {args.tasks} of {args.include_path} (in {where[-1].name}{said}); "
        "correct the task's file"
    )


def _manager(tasks: list[str], include_path: str | None) -> Any:
    """The harness's tasks and those of a directory; its own are read only if they are wanted."""
    try:
        from lm_eval.tasks import TaskManager
    except ModuleNotFoundError:
        raise UserError(
            "the evaluation harness is not installed; pip install 'qkvflow[lm-eval]'"
        ) from None
    # The harness warns of much that does not concern who asks for a number.
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    if include_path is not None:
        if not Path(include_path).is_dir():
            raise UserError(f"--include-path {include_path} is not a directory; check the path")
        manager = TaskManager(include_path=include_path, include_defaults=False)
        if all(task in manager.all_tasks for task in tasks):
            return manager
    manager = TaskManager(include_path=include_path)
    for task in tasks:
        if task not in manager.all_tasks:
            raise unknown("task", task, manager.all_tasks)
    return manager


def _table(answer: dict[str, Any]) -> str:
    """Task, metric, value and standard error, one line for each."""
    lines = [f"{answer['model']} at step {answer['step']}, {answer['num_steps']} depth steps"]
    for task, results in answer["results"].items():
        shots = answer["n-shot"].get(task)
        samples = answer["n-samples"].get(task, {}).get("effective")
        lines.append(f"{task} ({samples} examples, {shots}-shot)")
        for key, value in results.items():
            metric, _, kind = key.partition(",")
            is_metric = "," in key and not metric.endswith("_stderr")
            if not is_metric or not isinstance(value, float | int):
                continue
            error = results.get(f"{metric}_stderr,{kind}")
            after = f" ± {error:.4f}" if isinstance(error, float | int) else ""
            lines.append(f"  {metric}: {value:.4f}{after}")
    return "\n".join(lines)
