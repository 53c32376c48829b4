"""Define the fields of an RLJob as pydantic models, one file per section; each field's docstring is its help
text.

In: a manifest. Out: `rljob.RLJob`, or problems in the words of the API. Rules between fields are in `check`.
"""
