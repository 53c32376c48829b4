"""`python -m rljob_operator`: what the operator's image starts."""

from rljob_operator.main import main

if __name__ == "__main__":
    main()
