"""Arithmetic that mixers share: norms, convolution and recurrences."""
