"""The subcommands of ``mpsgrad``, one module each with ``add_parser(subparsers)`` and ``run(arguments) -> int``."""
