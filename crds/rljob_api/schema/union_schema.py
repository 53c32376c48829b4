"""A union by name as one structural schema: Kubernetes allows an object one set of properties alone.

Called by `crd`. All members' keys lie side by side; a rule keeps each to the members that have it. What
differs between members is said by none: their defaults are filled in where the job is read.
"""

from typing import Any

from rljob_api.spec.extensions import NameOf

Schema = dict[str, Any]
SAID_ONCE = ("description", "default", "enum")
"""Of a key, what members may have different ones of."""


def merged(members: list[Schema], *, path: str = "") -> Schema:
    """One object with the keys of all members. Raises ValueError where two bound a key differently."""
    result: Schema = {"type": "object", "properties": {}}
    for member in members:
        for key, schema in member["properties"].items():
            known = result["properties"].get(key)
            both = schema if known is None else _both(known, schema, path=f"{path}.{key}")
            result["properties"][key] = both
    required = [set(member.get("required", ())) for member in members]
    if kept := sorted(set.intersection(*required)):
        result["required"] = kept
    for key, schema in result["properties"].items():
        of = [member["properties"].get(key) for member in members]
        if any(one is None or one.get("default") != schema.get("default") for one in of):
            schema.pop("default", None)
    return result


def by_name(members: list[Schema], *, default: str) -> Schema:
    """`merged`, with a rule for each key of `params` that not all members have. One member may have a
    pattern for the names of packages; its other keys are for these alone."""
    of_packages = [member for member in members if "pattern" in member["properties"]["name"]]
    members = [member for member in members if member not in of_packages]
    result = merged(members)
    names = [member["properties"]["name"]["enum"][0] for member in members]
    result["properties"]["name"]["default"] = default
    for member in of_packages:
        own = member["properties"]
        result["properties"] = {**own, **result["properties"]}
        result["properties"]["name"] |= NameOf(tuple(names)).schema()
        del result["properties"]["name"]["enum"]
    result.pop("required", None)  # the name alone, which has a default
    result["properties"]["params"].pop("default", None)
    rules = []
    for key in result["properties"]["params"]["properties"]:
        of = [
            name
            for name, member in zip(names, members, strict=True)
            if key in member["properties"]["params"]["properties"]
        ]
        if of != names:
            rules.append(
                {
                    "rule": f"!has(self.params) || !has(self.params.{key}) || self.name in {of}",
                    "message": f"params.{key} is only for {', '.join(of)}",
                }
            )
    if rules:
        result["x-kubernetes-validations"] = rules
    return result


def _both(one: Schema, other: Schema, *, path: str) -> Schema:
    if "properties" in one:
        said = {k: one[k] for k in ("description",) if k in one}
        return merged([one, other], path=path) | said
    bounds = [{k: v for k, v in s.items() if k not in SAID_ONCE} for s in (one, other)]
    if bounds[0] != bounds[1]:
        raise ValueError(f"members of a union bound {path} differently: {bounds[0]} {bounds[1]}")
    both = dict(one)
    if "enum" in one:
        both["enum"] = list(dict.fromkeys([*one["enum"], *other["enum"]]))
    return both
