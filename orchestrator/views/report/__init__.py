"""``fcctl results report``: runs as one page, with pictures."""
