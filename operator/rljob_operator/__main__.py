"""Entry point of `python -m rljob_operator`, which the operator's image starts."""

from rljob_operator.main import main

if __name__ == "__main__":
    main()
