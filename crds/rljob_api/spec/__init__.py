"""The fields of an RLJob as pydantic models, a file a section; each field's note is its help in the resource.

In: a manifest. Out: `rljob.RLJob`, or problems in the words of the contract. Rules between fields are
`check`'s.
"""
