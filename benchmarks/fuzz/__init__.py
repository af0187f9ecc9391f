"""Odd calls of every verb, in numbers: none may end in a traceback, an abort, a hang or a line that
nobody understands.

    python -m benchmarks.fuzz [--calls N] [--seed S] [--seconds T] [--only NUMBER]

A call works or comes close, and then has one to three things wrong with it: an odd value of an
option, a word too many, an odd file, a fault in a file of a run, an export or an experiment. Verbs
and options are those of the parsers. Calls are made in processes forked from one that has imported
everything and has not started JAX, so that most cost a few hundredths of a second.
"""
