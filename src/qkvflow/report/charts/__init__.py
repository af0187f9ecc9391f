"""Figures as data, and their two renderers.

`description` says what a figure shows: panels, axes, series, labels. `markup` and the scripts
beside it draw it on a page, `printed` with matplotlib as PNG and PDF (`files.save`). A figure is a
function that returns a `description.Figure`; neither renderer knows what a figure is about.
"""
