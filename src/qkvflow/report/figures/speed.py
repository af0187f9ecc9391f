"""Time per training step, every round of it, and memory. Both axes start at zero."""

from qkvflow.report import numbers
from qkvflow.report.charts.description import Figure, Row, Rows, values
from qkvflow.report.charts.scales import axis
from qkvflow.report.content import Report, Speed

MEMORY = {
    "program": "what the compiled training step allocates",
    "resident": "peak resident size of the process",
}
UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def speed(report: Report, number: int) -> Figure | None:
    timed = [(model, model.speed) for model in report.models if model.speed is not None]
    if not timed:
        return None
    timed.sort(key=lambda each: each[1].median)
    rows = tuple(
        Row(
            model.label,
            model.index,
            own.median,
            values(own.rounds),
            own.q1,
            own.q3,
            note=f"{numbers.milliseconds(own.median)} ms",
            tip=_tip(own),
            tips=tuple(
                ((f"{'round' if own.measured else 'run'} {i + 1}", _ms(value)),)
                for i, value in enumerate(own.rounds)
            ),
        )
        for model, own in timed
    )
    longest = [v for row in rows for v in (*row.values, row.high)]
    x = axis("milliseconds per training step", longest, zero=True, pad=0.2)
    dots = "rounds" if all(own.measured for _, own in timed) else "seeds"
    key = f"dots: {dots}; bar: quartiles; line: median"
    panels = [Rows("Time per step", x, rows, stems=True, key=key)]
    sizes = sorted(
        ((m.memory, m) for m in report.models if m.memory is not None), key=lambda each: each[0]
    )
    if sizes:
        power = min(4, max(0, int(sizes[-1][0]).bit_length() - 1) // 10)
        rows = tuple(
            Row(
                model.label,
                model.index,
                size / 1024**power,
                note=numbers.memory(size),
                tip=(("memory", numbers.memory(size)),),
            )
            for size, model in sizes
        )
        x = axis(f"memory, {UNITS[power]}", [row.middle for row in rows], zero=True, pad=0.3)
        panels.append(Rows("Memory", x, rows, stems=True))
    return Figure(
        f"speed-{number}",
        "Speed and memory",
        f"{_source(report, all(own.measured for _, own in timed))}; the bar spans the quartiles,"
        f" the line in it is the median. Memory is {MEMORY[report.memory_kind]}. Both axes start"
        " at zero.",
        tuple(panels),
        columns=2,
    )


def _source(report: Report, measured: bool) -> str:
    if not measured:
        return "Each dot is a seed: time of training over its steps"
    several = len(report.records.experiments) > 1
    whose = "the models of one experiment" if several else "all models"
    return f"Each dot is a round, measured in turn over {whose}"


def _ms(value: float) -> str:
    return f"{numbers.milliseconds(value)} ms"


def _tip(own: Speed) -> tuple[tuple[str, str], ...]:
    lines = [("median", _ms(own.median))]
    lines.append(("quartiles", f"{numbers.milliseconds(own.q1)} – {_ms(own.q3)}"))
    if own.tokens_per_second is not None:
        lines.append(("tokens per second", numbers.short(own.tokens_per_second)))
    if own.compile_seconds is not None:
        lines.append(("compilation", numbers.seconds(own.compile_seconds)))
    return tuple(lines)
