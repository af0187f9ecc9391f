"""qkvflow: language models whose weights are functions of a continuous depth."""

__version__ = "0.1.0"
