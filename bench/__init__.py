"""Every op beside PyTorch, in one run: ``python -m bench`` or ``make bench``."""
