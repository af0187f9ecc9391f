"""One file per analysis, from its arrays to what is shown."""

from qkvflow.zoo.registry import Registry

SECTIONS = Registry("section", "report/analysis/sections")
"""`section(content) -> Section`, by the name of its analysis."""
