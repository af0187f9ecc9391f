"""Strikes, and counts what came of it."""

import argparse
import collections
import contextlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.forked import prepare, start
from benchmarks.fuzz.judge import judge
from benchmarks.storm.results import UNREADABLE, compared_result_of, difference, matters, result_of

SMALL = (
    *("--model.d_model", "8", "--model.num_heads", "1", "--model.num_steps", "1"),
    *("--model.context", "8", "--train.batch_size", "2", "--optim.warmup", "2"),
    *("--train.log_every", "2", "--train.steps_per_dispatch", "2", "--checkpoint.every", "4"),
)
ONE = ("--steps", "24", "--train.eval_every", "8", "--train.eval_tokens", "64", *SMALL)
SEVERAL = ["--models", "standard,shared", "--seeds", "2", "--steps", "12", "--workers", "2"]
SEVERAL += ["--evaluations", "2", "--speed-rounds", "0", "--no-samples", "--no-report", *SMALL]
VERDICTS = ("survived", "refused", "lost", "believed")
_ADVICE = (
    re.compile(r"delete (?P<path>/\S+) to go on"),
    re.compile(r"delete (?P<path>it) and start the same command again"),
)
_SECONDS = 240.0


@dataclass(frozen=True)
class Answer:
    code: int
    said: str
    out: str

    @property
    def refused(self) -> bool:
        return judge(self.code, self.said, late=False).verdict == "refused"


class Storm:
    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng = folder, random.Random(seed)
        self.counts: collections.Counter[tuple[str, str]] = collections.Counter()
        self.bad: list[str] = []
        self._number = 0
        self.mounts = may_mount(folder)
        words = ("depth", "is", "a", "coordinate", "and", "the", "flow", "of", "weights")
        text = " ".join(words[(7 * n * n + n // 3) % len(words)] for n in range(600)) + "\n"
        (folder / "text.txt").write_text(text)
        corpus = f"file:{folder / 'text.txt'}?split=0.8,0.1,0.1"
        data = ("--data", corpus, "--data.tokenizer", "char")
        self.train = ("train", *data, *ONE, "--quiet")
        self.compare = ("compare", "--quiet", *data, *SEVERAL)

    # Calls

    def call(
        self,
        words: Sequence[str],
        meanwhile: Callable[[int], None] | None = None,
        most_file: int = 1 << 28,
    ) -> Answer:
        """One call to its end; `meanwhile` gets its process."""
        place = self.new("call")
        place.mkdir()
        pid = start(words, place, most_file=most_file)
        if meanwhile is not None:
            meanwhile(pid)
        deadline, code = time.monotonic() + _SECONDS, None
        while code is None:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                code = 70
            else:
                time.sleep(0.01)
        said, out = ((place / name).read_text(errors="replace") for name in (".stderr", ".stdout"))
        shutil.rmtree(place)
        return Answer(code, said + ("over time" if code == 70 else ""), out)

    def new(self, name: str) -> Path:
        self._number += 1
        return self.folder / f"{name}-{self._number}"

    def count(self, row: str, verdict: str, why: str) -> None:
        self.counts[row, verdict] += 1
        if verdict in ("lost", "believed"):
            self.bad.append(f"{row}: {verdict}: {why}")
            print(self.bad[-1], flush=True)

    # What nothing happened to

    def make_material(self) -> None:
        self.run, self.compared = self.folder / "run", self.folder / "compared"
        self.export = self.folder / "export"
        begin = time.monotonic()
        self._well((*self.train, "--out", str(self.run), "--checkpoint.keep", "3"))
        self.run_seconds = time.monotonic() - begin
        self._well(("export", str(self.run), "--to", str(self.export)))
        begin = time.monotonic()
        self._well((*self.compare, "--out", str(self.compared)))
        self.compare_seconds = time.monotonic() - begin
        self.unfinished = self.folder / "unfinished"
        shutil.copytree(self.run, self.unfinished)
        (self.unfinished / "record.json").unlink()
        shutil.rmtree(self.unfinished / "checkpoints/24")
        self.half = self.folder / "half"
        shutil.copytree(self.compared, self.half)
        for run in sorted((self.half / "runs").glob("*/*"))[::2]:
            (run / "record.json").unlink()
        self.run_result = result_of(self.run)
        self.compared_result = compared_result_of(self.compared)
        self.evaluation = self._well(("eval", str(self.run), "--json"))

    def _well(self, words: Sequence[str]) -> str:
        answer = self.call(words)
        if answer.code != 0:
            sys.exit(f"{shlex.join(words)} failed: {answer.said[-2000:]}")
        return answer.out

    # Kills

    def kill_run(self) -> int:
        """One run, struck until it gets through; how many signals it took."""
        out, kills = self.new("run"), []
        words = (*self.train, "--out", str(out), "--checkpoint.keep", "3")
        while True:
            resumed = (out / "config.yaml").exists()
            now = ("resume", str(out), "--quiet") if resumed else words
            how = self.rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGHUP))
            moment = self.rng.uniform(0.0, 1.2 * self.run_seconds)
            struck: list[bool] = []
            strike = self._striker(how, moment, struck)
            answer = self.call(now, strike if len(kills) < 6 else None)
            if answer.code == 0:
                break
            if not struck or judge(answer.code, answer.said, late=False).verdict == "traceback":
                self._after_kills("run", kills, "lost", answer.said[-300:])
                return len(kills)
            kills.append(how)
        same = result_of(out) == self.run_result
        self._after_kills("run", kills, "survived" if same else "believed", str(out))
        if same:
            shutil.rmtree(out)
        return len(kills)

    def kill_comparison(self) -> int:
        """One comparison: its own process is struck, or one of its workers."""
        out, kills = self.new("comparison"), []
        words = (*self.compare, "--out", str(out))
        while True:
            how = self.rng.choice((signal.SIGKILL, signal.SIGTERM))
            moment = self.rng.uniform(0.0, 1.2 * self.compare_seconds)
            struck: list[bool] = []
            worker = self.rng.random() < 0.5
            strike = self._striker(how, moment, struck, worker=worker)
            answer = self.call(words, strike if len(kills) < 4 else None)
            if struck:
                kills.append(how)
            if answer.code == 0:
                break
            if not struck or judge(answer.code, answer.said, late=False).verdict == "traceback":
                self._after_kills("comparison", kills, "lost", answer.said[-300:])
                return len(kills)
        same = compared_result_of(out) == self.compared_result
        self._after_kills("comparison", kills, "survived" if same else "believed", str(out))
        if same:
            shutil.rmtree(out)
        return len(kills)

    def _striker(
        self, how: signal.Signals, moment: float, struck: list[bool], *, worker: bool = False
    ) -> Callable[[int], None]:
        def strike(pid: int) -> None:
            deadline = time.monotonic() + moment
            while time.monotonic() < deadline and not _is_over(pid):
                time.sleep(0.002)
            # Workers are forked by a process beside the call.
            below = [w for each in children_of(pid) for w in children_of(each)] if worker else []
            target = self.rng.choice(below) if below else pid
            if not _is_over(target):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(target, how)
                    struck.append(True)

        return strike

    def _after_kills(self, what: str, kills: list[signal.Signals], verdict: str, why: str) -> None:
        for how in kills:
            self.count(f"{how.name} of a {what}", verdict, why)

    # Damaged files

    def damage(self, number: int) -> None:
        """One fault in one file of something, and what is done with it then."""
        what, source, use = (
            ("an unfinished run", self.unfinished, self._resumed),
            ("a finished run", self.run, self._evaluated),
            ("an export", self.export, self._evaluated),
            ("a comparison under way", self.half, self._compared),
            ("a finished comparison", self.compared, self._compared),
        )[number % 5]
        copy = Path(shutil.copytree(source, self.new("copy")))
        files = [path for path in sorted(copy.rglob("*")) if matters(path)]
        # By kind, or almost every fault would be in a piece of a checkpoint.
        kinds = collections.defaultdict(list)
        for path in files:
            kinds["piece" if "checkpoints" in path.parts else path.name].append(path)
        path = self.rng.choice(
            kinds[self.rng.choice(sorted([*kinds, "piece"] if "piece" in kinds else kinds))]
        )
        how = self.rng.choice(("bit flip", "truncation"))
        content = bytearray(path.read_bytes())
        if how == "bit flip" and content:
            content[self.rng.randrange(len(content))] ^= 1 << self.rng.randrange(8)
        elif content:
            del content[self.rng.randrange(len(content)) :]
        path.write_bytes(bytes(content))
        verdict, why = use(copy)
        name = path.relative_to(copy)
        if "checkpoints" in name.parts:
            name = Path(*(part if len(part) < 20 else "PIECE" for part in name.parts))
        self.count(f"{how} in {what}", verdict, f"{name}: {why}")
        shutil.rmtree(copy, ignore_errors=True)

    def _resumed(self, copy: Path) -> tuple[str, str]:
        return self._used(
            ("resume", str(copy)), copy, lambda _: difference(result_of(copy), self.run_result)
        )

    def _evaluated(self, copy: Path) -> tuple[str, str]:
        source = self.export if (copy / "model.safetensors").exists() else self.run

        def differs(answer: Answer) -> str | None:
            return difference(
                json.loads(answer.out)["results"], json.loads(self.evaluation)["results"]
            )

        verdict, why = self._used(("eval", str(copy), "--json"), copy, differs)
        if verdict == "refused" and source is self.run:
            # A finished run is mended by going on with it, or by deleting what is damaged.
            verdict, why = self._used(("resume", str(copy)), copy, lambda _: None)
            if verdict in ("survived", "refused"):
                verdict, why = self._used(("eval", str(copy), "--json"), copy, differs)
                verdict = "refused" if verdict == "survived" else verdict
        return verdict, why

    def _compared(self, copy: Path) -> tuple[str, str]:
        words = (*self.compare, "--out", str(copy))
        return self._used(
            words, copy, lambda _: difference(compared_result_of(copy), self.compared_result)
        )

    def _used(
        self, words: Sequence[str], copy: Path, differs: Callable[[Answer], str | None]
    ) -> tuple[str, str]:
        """Give a command, follow its advice, and compare what comes of it."""
        verdict, said = "survived", ""
        for _ in range(8):
            answer = self.call(words)
            said = answer.said.strip()
            if answer.code == 0:
                try:
                    other = differs(answer)
                except (OSError, ValueError, KeyError) as error:
                    other = f"it cannot be read ({error!r})"
                if other is None:
                    return verdict, said[-300:]
                if f"digests is {UNREADABLE}" in other:
                    run = copy / other.partition("/digests")[0].strip("/")
                    read = self.call(("eval", str(run)))
                    return ("refused" if read.refused else "believed"), read.said[-300:]
                said = f"{answer.out} {said}"
                told = re.search(r"altered|is gone|damaged|from here on|instead of", said)
                return (verdict if told else "believed"), f"{other}; said: {said[-300:]}"
            if not answer.refused:
                return "lost", said[-300:]
            verdict = "refused"
            found = next((m for each in _ADVICE if (m := each.search(said))), None)
            if found is None:
                return verdict, said[-300:]
            path = said.split("qkvflow: ", 1)[1].split(" ")[0]
            target = Path(path if found["path"] == "it" else found["path"])
            if copy not in target.parents or not target.exists():
                return "lost", f"advice that does not help: {said[-300:]}"
            shutil.rmtree(target) if target.is_dir() else target.unlink()
        return "lost", f"no end of advice: {said[-300:]}"

    # Full disks

    def fill(self, number: int) -> None:
        """A disk that is full at some moment, and larger the next time."""
        what = ("run", "run", "export", "comparison")[number % 4]
        disk = self.new("disk")
        disk.mkdir()
        kilobytes = self.rng.randint(8, 1200 if what == "comparison" else 400)
        if what == "export":
            kilobytes = self.rng.randint(4, 24)
        row = f"full disk: {what}"
        # Where no small disk may be mounted, a file that may not grow; workers inherit that.
        most_file = (1 << 28) if self.mounts else self.rng.randint(300, 6000)
        with mounted(disk, kilobytes) if self.mounts else contextlib.nullcontext():
            out = disk / "out"
            begin = {
                "run": (*self.train, "--out", str(out), "--checkpoint.keep", "3"),
                "export": ("export", str(self.run), "--to", str(out)),
                "comparison": (*self.compare, "--out", str(out)),
            }[what]
            first = self.call(begin, most_file=most_file)
            if first.code != 0 and not first.refused:
                self.count(row, "lost", f"{kilobytes} kB: {first.said[-300:]}")
                return
            if first.code == 0:
                return  # There was room: not a fault.
            if self.mounts:
                subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
            resumed = what == "run" and (out / "config.yaml").exists()
            again = self.call(("resume", str(out)) if resumed else begin)
            if again.code != 0:
                self.count(row, "lost", f"{kilobytes} kB, with room: {again.said[-300:]}")
                return
            if what == "export":
                evaluated = self.call(("eval", str(out), "--json"))
                other = difference(
                    json.loads(evaluated.out)["results"], json.loads(self.evaluation)["results"]
                )
            elif what == "run":
                other = difference(result_of(out), self.run_result)
            else:
                other = difference(compared_result_of(out), self.compared_result)
            self.count(row, "refused" if other is None else "believed", f"{kilobytes} kB: {other}")

    def table(self) -> str:
        rows = sorted({row for row, _ in self.counts})
        width = max(map(len, [*rows, "all"]), default=3)
        lines = [f"| {'fault':{width}} | tries | " + " | ".join(VERDICTS) + " |"]
        lines.append(f"|{'-' * (width + 2)}|---:|" + "---:|" * len(VERDICTS))
        for row in [*rows, "all"]:
            counts = [
                sum(n for (r, v), n in self.counts.items() if row in (r, "all") and v == verdict)
                for verdict in VERDICTS
            ]
            cells = " | ".join(f"{n:{len(name)}}" for n, name in zip(counts, VERDICTS, strict=True))
            lines.append(f"| {row:{width}} | {sum(counts):5} | {cells} |")
        return "\n".join(lines)


@contextlib.contextmanager
def mounted(disk: Path, kilobytes: int) -> Any:
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(disk)], check=True
    )
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def may_mount(folder: Path) -> bool:
    disk = folder / "may-mount"
    disk.mkdir()
    try:
        with mounted(disk, 64):
            return True
    except (subprocess.CalledProcessError, OSError):
        return False


def _is_over(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def children_of(pid: int) -> list[int]:
    try:
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.storm")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=14_400.0, help="begin nothing after that")
    args = parser.parse_args()
    folder, begin = Path(tempfile.mkdtemp(prefix="qkvflow-storm-")), time.monotonic()
    prepare(folder)
    storm = Storm(folder, args.seed)
    try:
        storm.make_material()
        kills = faults = 0
        while kills < args.kills or faults < args.faults:
            if time.monotonic() - begin > args.seconds:
                break
            if faults < args.faults:
                # A full disk is the dearest of them.
                if faults % 20 == 19:
                    storm.fill(faults // 20)
                else:
                    storm.damage(faults)
                faults += 1
            if kills * args.faults < faults * args.kills or faults >= args.faults:
                kills += storm.kill_comparison() if storm.rng.random() < 0.25 else storm.kill_run()
    finally:
        print(storm.table(), flush=True)
        print(f"seed {args.seed}, {time.monotonic() - begin:.0f} s")
        shutil.rmtree(folder, ignore_errors=True)
    return int(bool(storm.bad))


if __name__ == "__main__":
    sys.exit(main())
