"""Makes the calls, and counts what came of them."""

import argparse
import collections
import contextlib
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.forked import prepare, start
from benchmarks.fuzz.calls import LASTING, SMALL, Call, Caller
from benchmarks.fuzz.judge import BAD, GOOD, Outcome, judge
from benchmarks.fuzz.odd import make_places, names

SECONDS = 60.0
"""After which a call that shows nothing is one that hangs."""
_WORKING_SECONDS = 10.0
"""After which a call that shows steps is asked to stop."""
_GRACE_SECONDS = 30.0


@dataclass
class Child:
    number: int
    call: Call
    pid: int
    begun: float
    asked: float | None = None
    seconds: float = 0.0
    """Of processor time, when it is over."""

    @property
    def errors(self) -> Path:
        return self.call.folder / ".stderr"

    def works(self) -> bool:
        """Whether it shows something: steps of a run, or text."""
        shown = [self.call.folder / ".stdout", *self.call.folder.glob("*/metrics.jsonl")]
        return any(path.stat().st_size > 0 for path in shown if path.exists())


def make_material(folder: Path, run: Path | None) -> None:
    """A corpus, configurations, runs, an export, adapters and an experiment, by the real verbs.

    A run that is given is used instead of training any; there are no adapters then."""
    folder.mkdir()
    words = ("depth", "is", "a", "coordinate", "and", "the", "flow", "of", "weights")
    text = " ".join(words[(7 * n * n + n // 3) % len(words)] for n in range(600)) + "\n"
    (folder / "text.txt").write_text(text)
    corpus = f"file:{folder / 'text.txt'}?split=0.8,0.1,0.1"
    sizes = "model: {name: standard, d_model: 8, num_heads: 1, num_steps: 1, context: 8}\n"
    data = f"data: {{spec: '{corpus}', tokenizer: char}}\n"
    train = "train: {steps: 2, batch_size: 2, eval_tokens: 16}\n"
    (folder / "config.yaml").write_text(sizes + data + train)
    plan = sizes.replace("name: standard, ", "") + data + train.replace("steps: 2, ", "")
    (folder / "plan.yaml").write_text(
        f"models: [standard, tong]\nseeds: 2\nbudget: {{steps: 2}}\n{plan}"
    )
    make_tasks(folder / "tasks")
    seeds = [folder / f"experiment/runs/standard/seed-{seed}" for seed in (0, 1)]
    if run is None:
        small = ("train", "--data", corpus, *SMALL, "--steps", "4", "--quiet")
        outs = {folder / "run": "0", seeds[0]: "0", seeds[1]: "1"}
        _all_well([(*small, "--seed", s, "--out", str(out)) for out, s in outs.items()], folder)
    else:
        for place in (folder / "run", seeds[0]):
            shutil.copytree(run, place)
    run, adapted = folder / "run", folder.parent / "adapted"
    lora = f"finetune {run} --data {corpus} --steps 2 --method lora --quiet --batch-size 2"
    calls: list[tuple[str, ...]] = [
        ("export", str(run), "--to", str(folder / "export")),
        ("export", str(run), "--to", str(folder / "pretrained"), "--format", "hf"),
    ]
    if seeds[1].exists():
        calls.append((*lora.split(), "--out", str(adapted)))
    _all_well(calls, folder)
    if adapted.exists():
        shutil.copy(adapted / "adapter.safetensors", folder / "adapter.safetensors")
    unfinished = Path(shutil.copytree(run, folder / "unfinished"))
    (unfinished / "record.json").unlink()
    steps = [path for path in (unfinished / "checkpoints").iterdir() if path.name.isdecimal()]
    shutil.rmtree(max(steps, key=lambda path: int(path.name)))


def make_tasks(folder: Path) -> None:
    """Of the harness, one of each kind of request."""
    folder.mkdir()
    kinds = {
        "choice": "multiple_choice, doc_to_text: '{{q}}', doc_to_choice: a, doc_to_target: 0",
        "words": "generate_until, doc_to_text: '{{q}}', doc_to_target: '{{a[0]}}', "
        "generation_kwargs: {until: ['\\n'], max_gen_toks: 2}",
        "rolling": "loglikelihood_rolling, doc_to_text: '', doc_to_target: '{{q}}'",
    }
    # What the runs' context of 8 has room for.
    rows = [{"q": "the", "a": ["flow", "a"]}, {"q": "flow", "a": ["of", "is"]}]
    data = folder / "rows.jsonl"
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    source = f"dataset_path: json, dataset_kwargs: {{data_files: {{test: '{data}'}}}}"
    for name, kind in kinds.items():
        text = f"{{task: {name}, test_split: test, {source}, output_type: {kind}}}\n"
        (folder / f"{name}.yaml").write_text(text)


def _all_well(calls: list[tuple[str, ...]], folder: Path) -> None:
    begun = []
    for index, words in enumerate(calls):
        place = folder.parent / f"made-{index}"
        place.mkdir(exist_ok=True)
        begun.append((words, place, start(words, place, limited=False)))
    for words, place, pid in begun:
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0:
            sys.exit(f"{shlex.join(words)} failed: {(place / '.stderr').read_text()[-2000:]}")


class Tally:
    """Counts by verb, and every call that ended as none may."""

    def __init__(self) -> None:
        self.counts: collections.Counter[tuple[str, str]] = collections.Counter()
        self.seconds: collections.Counter[str] = collections.Counter()
        self.bad: list[str] = []

    def add(self, child: Child, outcome: Outcome) -> None:
        self.counts[child.call.verb, outcome.verdict] += 1
        self.seconds.update({child.call.verb: child.seconds, "all": child.seconds})
        if outcome.verdict in BAD:
            notes = f" ({', '.join(child.call.notes)})" if child.call.notes else ""
            shown = shlex.join(word[:300] for word in child.call.words)
            line = f"{child.number} {outcome.verdict}: {outcome.why}\n    {shown}{notes}"
            self.bad.append(line.encode("ascii", "backslashreplace").decode())
            print(self.bad[-1], flush=True)

    def table(self) -> str:
        heads = "".join(f"{name:>11}" for name in GOOD + BAD)
        rows = [f"{'verb':18}{'calls':>7}{heads}{'seconds':>11}"]
        for verb in [*sorted({verb for verb, _ in self.counts}), "all"]:
            counts = {
                name: sum(
                    n for (v, o), n in self.counts.items() if verb in (v, "all") and o == name
                )
                for name in GOOD + BAD
            }
            cells = "".join(f"{counts[name]:11}" for name in GOOD + BAD)
            rows.append(f"{verb:18}{sum(counts.values()):7}{cells}{self.seconds[verb]:11.1f}")
        return "\n".join(rows)


def attend(child: Child, hang: float, keep: bool) -> tuple[Outcome, str] | None:
    """What came of a call and what it said, if it is over. One that shows steps is asked to stop,
    one that shows nothing for long is ended."""
    pid, status, usage = os.wait4(child.pid, os.WNOHANG)
    spent = time.monotonic() - child.begun
    late = False
    if pid == 0:
        lasting = child.call.verb in LASTING
        if child.asked is None and spent > _WORKING_SECONDS and (lasting or child.works()):
            os.kill(child.pid, signal.SIGTERM)
            child.asked = spent
        if spent < (hang if child.asked is None else child.asked + _GRACE_SECONDS):
            return None
        late = True
        os.killpg(child.pid, signal.SIGKILL)
        _, status, usage = os.wait4(child.pid, 0)
    child.seconds = usage.ru_utime + usage.ru_stime
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)  # What it has started itself.
    said = child.errors.read_text("utf-8", errors="replace") if child.errors.exists() else ""
    code = os.waitstatus_to_exitcode(status)
    asked = child.asked is not None and code == -signal.SIGTERM
    outcome = Outcome("stopped") if asked and not late else judge(code, said, late=late)
    if not keep:
        shutil.rmtree(child.call.folder, ignore_errors=True)
    return outcome, said


def fuzz(args: argparse.Namespace, folder: Path, tally: Tally) -> None:
    prepare(folder)
    places = make_places(folder / "places")
    make_material(folder / "material", args.run)
    caller = Caller(args.seed, folder / "material", places, names())
    numbers = iter(range(args.calls) if args.only is None else [args.only])
    children, begin = [], time.monotonic()
    more = True
    while more or children:
        while more and len(children) < args.workers:
            number = next(numbers, None)
            if number is None or time.monotonic() - begin > args.seconds:
                more = False
                break
            if args.verbs and caller.verb_of(number) not in args.verbs.split(","):
                continue
            call = caller.make(number, folder / "calls" / str(number))
            children.append(Child(number, call, start(call.words, call.folder), time.monotonic()))
            if args.only is not None:
                print(ascii(shlex.join(call.words)), call.notes, call.folder)
        for child in list(children):
            ended = attend(child, args.hang, keep=args.only is not None)
            if ended is not None:
                outcome, said = ended
                children.remove(child)
                tally.add(child, outcome)
                if args.show or args.only is not None:
                    shown = f"{child.call.verb} {child.seconds:.1f} s: {said.strip()[-1000:]}"
                    print(f"{child.number} {outcome.verdict}: {shown}")
        time.sleep(0.005)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz")
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=7200.0, help="begin no call after that")
    parser.add_argument("--hang", type=float, default=SECONDS, help="seconds that are too many")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--run", type=Path, help="a run that has ended, to use instead of training")
    parser.add_argument("--verbs", metavar="V,V,...", help="of the calls, those of these verbs")
    parser.add_argument("--show", action="store_true", help="what every call was answered")
    parser.add_argument(
        "--only", type=int, metavar="NUMBER", help="that call alone; keep its files"
    )
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="qkvflow-fuzz-"))
    begin, tally = time.monotonic(), Tally()
    try:
        fuzz(args, folder, tally)
    except KeyboardInterrupt:
        print("interrupted; until then:")
    finally:
        if args.only is None:
            shutil.rmtree(folder, ignore_errors=True)
    print(tally.table())
    print(f"seed {args.seed}, {time.monotonic() - begin:.0f} s")
    return int(bool(tally.bad))


if __name__ == "__main__":
    sys.exit(main())
