"""The command line: one file per verb, each with `configure` (its options) and `run`.

A verb imports what it needs when it runs, so that `--help` answers at once.
"""

import argparse
import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from qkvflow import __version__, allocator, threads
from qkvflow.cli.examples import EXAMPLES
from qkvflow.cli.parser import Parser
from qkvflow.compilation import mend_compilation_cache
from qkvflow.errors import Note, UserError, one_line, out_of_memory, unknown

VERBS: dict[str, str] = {
    "models": "list the models of the zoo with their parameters and compute",
    "compare": "compare models over several seeds: statistics, figures and a report",
    "tune": "search over any options of a run for the lowest validation loss",
    "scaling-law": "what sizes, repeats and tokens are worth: a grid of runs and the law they obey",
    "coordinate-check": "do activations keep their size when the width grows (mup)?",
    "plan": "what a training run needs, and where it fits, without running it",
    "train": "train a model on text",
    "resume": "continue a run from its last checkpoint",
    "launch": "train, resume, finetune or eval by several processes on this machine",
    "import": "a pretrained model of Hugging Face, for the other verbs",
    "finetune": "continue a pretrained run on other data, at another depth",
    "convert": "fit a shared, low-rank, basis, gated or looped field to a trained model's layers",
    "eval": "the loss of a trained model on a whole split",
    "lm-eval": "a trained model on the tasks of EleutherAI's evaluation harness",
    "sweep-depth": "loss and cost of a trained model at other depths and with other solvers",
    "generate": "text from a trained model, as it is produced",
    "analyze": "look inside a trained model: spectra, exponents, trajectories, weights",
    "serve": "a trained model behind HTTP, with the completions protocol of OpenAI",
    "report": "tables, figures and one page from the records of experiments",
    "export": "write a trained model as files any tool can read, or for transformers",
}
"""Verb to its one-line help; the module is `qkvflow.cli.VERB` with - as _."""


def _usage() -> str:
    width = max(map(len, VERBS))
    lines = [f"  {verb:<{width}}  {text}" for verb, text in VERBS.items()]
    return "\n".join(
        [
            "qkvflow: language models whose weights are functions of a continuous depth",
            "",
            "usage: qkvflow VERB [options]",
            "",
            *lines,
            "",
            "qkvflow VERB --help describes a verb; qkvflow --version prints the version.",
        ]
    )


def main(argv: list[str] | None = None) -> int:
    """Run one verb. Returns the exit code: 0, or 2 for a mistake in what was asked."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0
    if argv[0] == "--version":
        print(f"qkvflow {__version__}")
        return 0
    allocator.configure_malloc()
    try:
        threads.configure_threads()
        with _notes():
            return _run_verb(argv[0], argv[1:])
    except UserError as error:
        return _refuse(error)
    except BrokenPipeError:
        # The reader went away (as in `qkvflow models | head`): not an error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("qkvflow: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        where = "" if error.filename is None else f"{one_line(error.filename, 160)}: "
        return _refuse(f"{where}{error.strerror or error}; check the path, its rights and the disk")
    except RecursionError:
        return _refuse("what was given is nested too deeply; flatten it")
    except Exception as error:
        if _after_interrupt(error):
            print("qkvflow: interrupted", file=sys.stderr)
            return 130
        if (problem := out_of_memory(error)) is not None:
            return _refuse(problem)
        if "embedded null byte" in str(error):
            return _refuse("a path or text with a null character cannot be used; leave it out")
        raise


def _after_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl-C came before it: libraries that are stopped halfway may raise errors of their
    own while they clear up, as zlib's in the middle of a picture."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _refuse(why: object) -> int:
    print(f"qkvflow: {one_line(why)}", file=sys.stderr)
    return 2


@contextlib.contextmanager
def _notes() -> Iterator[None]:
    """Prints each `Note` on a line of stderr."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", Note)
        before = warnings.showwarning

        def show(message: Any, category: Any, *rest: Any) -> None:
            if issubclass(category, Note):
                print(f"note: {one_line(message)}", file=sys.stderr)
            elif (mended := mend_compilation_cache(str(message))) is not None:
                print(f"note: {one_line(mended)}", file=sys.stderr)
            else:
                before(message, category, *rest)

        warnings.showwarning = show
        yield


def _run_verb(verb: str, argv: list[str]) -> int:
    if verb not in VERBS:
        raise unknown("verb", verb, VERBS)
    parser = parser_of(verb)
    args = parser.parse_args([_as_option(each) for each in argv])
    for name, value in vars(args).items():
        if isinstance(value, int) and abs(value) >= 1 << 63:
            raise UserError(f"--{name.replace('_', '-')} is too large a number: 2^63 or more")
    # After parsing, so that `--help` runs none of them.
    from qkvflow.zoo.plugins import allow_changed_plugins, load_installed, load_plugins

    allow_changed_plugins(args.allow_changed_plugin)
    load_installed()
    load_plugins(args.plugin or [])
    return _module(verb).run(args) or 0


def parser_of(verb: str) -> Parser:
    """The parser of one verb, with all its options."""
    parser = Parser(
        prog=f"qkvflow {verb}",
        description="\n".join([VERBS[verb], "", *(f"  {each}" for each in EXAMPLES.get(verb, ()))]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _module(verb).configure(parser)
    _add_plugin_options(parser)
    return parser


def _module(verb: str) -> Any:
    return importlib.import_module(f"qkvflow.cli.{verb.replace('-', '_')}")


def _add_plugin_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("plugins")
    group.add_argument(
        "--plugin",
        action="append",
        metavar="FILE.py",
        help="a file that registers members of your own; may be given several times",
    )
    group.add_argument(
        "--allow-changed-plugin",
        action="store_true",
        help="read what was made with another version of a plugin",
    )


def _as_option(word: str) -> str:
    """`--train.depth-jitter` as `--train.depth_jitter` and `--batch_size` as `--batch-size`."""
    name, equals, value = word.partition("=")
    if not name.startswith("--") or " " in name:
        return word
    written = name[2:].replace("-", "_") if "." in name else name[2:].replace("_", "-")
    return f"--{written}{equals}{value}"
