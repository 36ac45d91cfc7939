"""``python -m cpprb_like``: the command line, as the command ``cpprb_like``."""

from cpprb_like.cli import main

if __name__ == "__main__":
    main()
