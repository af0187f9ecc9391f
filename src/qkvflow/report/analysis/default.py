"""An analysis without a section of its own: its arrays as lines over depth."""

import numpy as np

from qkvflow.report import numbers
from qkvflow.report.analysis.content import Content
from qkvflow.report.analysis.parts import Numbers, Section, bundle, line, lines
from qkvflow.report.charts.description import Figure


def default_section(name: str, content: Content) -> Section:
    """A chart for every array along `ts`, or along its own first axis; a table of single numbers.

    Entries of further axes are a line each.
    """
    arrays = {
        key: array
        for key, array in content.arrays(name).items()
        if np.issubdtype(array.dtype, np.number) and array.size and key != "ts"
    }
    ts = content.arrays(name).get("ts")
    charts = [_lines(name, key, np.real(array), ts) for key, array in arrays.items() if array.ndim]
    single = tuple(
        (key, numbers.three(float(np.real(x)))) for key, x in arrays.items() if not x.ndim
    )
    table = (Numbers("Numbers", ("Name", "Value"), single, ""),) if single else ()
    return Section(name, name, f"The arrays of {name}.npz.", (*charts, *table))


def _lines(name: str, key: str, array: np.ndarray, ts: np.ndarray | None) -> Figure:
    curves = array.reshape(len(array), -1).T
    names = [key] if len(curves) == 1 else [f"{key} {i + 1}" for i in range(len(curves))]
    along = ts is not None and len(ts) == len(array)
    x = np.asarray(ts) if along else np.arange(1, len(array) + 1)
    series = bundle(x, curves, names)
    if len(curves) == 1 and not along:
        series = [line(key, 0, x, curves[0], "dots")]
    return Figure(
        f"{name}_{key}".replace("/", "_").replace("-", "_"),
        key,
        "One line per entry." if len(curves) > 1 else "",
        (lines("", "t" if along else "entry", key, series),),
    )
