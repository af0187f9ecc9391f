"""Measurements side by side with other libraries, each in one run. Not tests: they only print."""
