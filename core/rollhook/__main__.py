"""`python -m rollhook` is the command `rollhook`."""

from rollhook.cli import main

if __name__ == "__main__":
    main(prog_name="rollhook")
