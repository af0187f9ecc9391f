"""Evaluation: losses on whole splits, depth sweeps, n-gram baselines, the evaluation harness."""

from qkvflow.evaluation.losses import Evaluation, Evaluator, evaluate

__all__ = ["Evaluation", "Evaluator", "evaluate"]
