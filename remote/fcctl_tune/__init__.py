"""Searching a kernel's configurations: what is tried, in which order, and what came of it.

Runs on the GPU host as a step of a run, and in the controller and its workers for a fleet. Imports the standard library
and ``fcctl_remote``; Optuna and Dask only inside the functions that need them. Python 3.9 or newer.
"""
