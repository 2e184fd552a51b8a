"""``fcctl ui``: runs in the browser of the same machine."""
