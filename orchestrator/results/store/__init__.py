"""The local store: ``results/`` of a workspace. ``runs/<run-id>/`` is the truth, ``index.sqlite`` is disposable.

::

    active/<run-id>/{lock, plan.json, journal.jsonl}     a run that is not complete
    runs/<run-id>.partial/                               its results while they are collected
    runs/<run-id>/{run.json, plan.json, journal.jsonl, ...}   complete and immutable
    index.sqlite                                         one row a run; rebuilt whenever it is missing or wrong
"""
