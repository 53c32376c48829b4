"""Build one structural schema for a union by name: Kubernetes allows an object only one set of properties.

Called by `crd`. The keys of all members are merged, and a rule restricts each to the members that have it.
Defaults that differ between members are left out; they are filled in when the job is read.
"""

from typing import Any

from rljob_api.spec.extensions import NameOf

Schema = dict[str, Any]
SAID_ONCE = ("description", "default", "enum")
"""Attributes of a key that may differ between members."""


def merged(members: list[Schema], *, path: str = "") -> Schema:
    """Return one object with the keys of all members. Raises ValueError if two members bound a key
    differently."""
    result: Schema = {"type": "object", "properties": {}}
    for member in members:
        for key, schema in member["properties"].items():
            previous = result["properties"].get(key)
            both = schema if previous is None else _both(previous, schema, path=f"{path}.{key}")
            result["properties"][key] = both
    required = [set(member.get("required", ())) for member in members]
    if always_required := sorted(set.intersection(*required)):
        result["required"] = always_required
    for key, schema in result["properties"].items():
        member_schemas = [member["properties"].get(key) for member in members]
        if any(
            one is None or one.get("default") != schema.get("default") for one in member_schemas
        ):
            schema.pop("default", None)
    return result


def by_name(members: list[Schema], *, default: str) -> Schema:
    """Return the merged members, with a rule for each key of `params` that not all members have. One member
    may have a pattern for the names of packages; its other keys are only for these."""
    of_packages = [member for member in members if "pattern" in member["properties"]["name"]]
    members = [member for member in members if member not in of_packages]
    result = merged(members)
    names = [member["properties"]["name"]["enum"][0] for member in members]
    result["properties"]["name"]["default"] = default
    for member in of_packages:
        package_properties = member["properties"]
        result["properties"] = {**package_properties, **result["properties"]}
        result["properties"]["name"] |= NameOf(tuple(names)).schema()
        del result["properties"]["name"]["enum"]
    result.pop("required", None)  # the name alone, which has a default
    result["properties"]["params"].pop("default", None)
    rules = []
    for key in result["properties"]["params"]["properties"]:
        owners = [
            name
            for name, member in zip(names, members, strict=True)
            if key in member["properties"]["params"]["properties"]
        ]
        if owners != names:
            rules.append(
                {
                    "rule": f"!has(self.params) || !has(self.params.{key}) || self.name in {owners}",
                    "message": f"params.{key} is only for {', '.join(owners)}",
                }
            )
    if rules:
        result["x-kubernetes-validations"] = rules
    return result


def _both(one: Schema, other: Schema, *, path: str) -> Schema:
    if "properties" in one:
        common = {k: one[k] for k in ("description",) if k in one}
        return merged([one, other], path=path) | common
    bounds = [{k: v for k, v in s.items() if k not in SAID_ONCE} for s in (one, other)]
    if bounds[0] != bounds[1]:
        raise ValueError(f"members of a union bound {path} differently: {bounds[0]} {bounds[1]}")
    both = dict(one)
    if "enum" in one:
        both["enum"] = list(dict.fromkeys([*one["enum"], *other["enum"]]))
    return both
