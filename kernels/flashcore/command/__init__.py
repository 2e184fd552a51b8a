"""The verbs of ``python -m flashcore``, a module each: ``run(options)`` carries one out and gives its exit code."""
