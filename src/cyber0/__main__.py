"""`python -m cyber0`: the same as the command `cyber0`."""

from cyber0.cli import main

if __name__ == "__main__":
    main()
